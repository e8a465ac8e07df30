#include "hosts/llama/sampler.h"

#include <llama.h>

#include "hosts/llama/score_rules.h"

namespace veloxquant::llama {

Sampler::Sampler(float temperature, uint32_t seed) : chain_(nullptr, llama_sampler_free) {
  if (temperature <= 0) return;
  chain_.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  llama_sampler_chain_add(chain_.get(), llama_sampler_init_top_k(kCandidates));
  llama_sampler_chain_add(chain_.get(), llama_sampler_init_temp(temperature));
  llama_sampler_chain_add(chain_.get(), llama_sampler_init_dist(seed));
}

Token Sampler::pick(std::span<const float> logits) {
  if (!chain_) return argmax(logits);
  std::vector<llama_token_data> candidates;
  candidates.reserve(logits.size());
  for (const float logit : logits) candidates.push_back({static_cast<Token>(candidates.size()), logit, 0.0F});
  llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
  llama_sampler_apply(chain_.get(), &array);
  return array.data[array.selected].id;
}

}  // namespace veloxquant::llama
