// Picks the next token.
#pragma once

#include <memory>
#include <span>

#include "hosts/llama/host.h"

struct llama_sampler;

namespace veloxquant::llama {

class Sampler {
 public:
  /// Tokens considered when temperature > 0.
  static constexpr int kCandidates = 40;

  /// Temperature 0: always the likeliest token.
  Sampler(float temperature, uint32_t seed);
  Token pick(std::span<const float> logits);

 private:
  std::unique_ptr<llama_sampler, void (*)(llama_sampler*)> chain_;  ///< null: temperature 0
};

}  // namespace veloxquant::llama
