#include "model/random_models.h"

#include <ggml-backend.h>
#include <gguf.h>
#include <llama.h>

#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>

namespace veloxquant::llama::test {
namespace {

using GgufPointer = std::unique_ptr<gguf_context, void (*)(gguf_context*)>;

void set(gguf_context* file, const char* key, const MetadataValue& value) {
  if (const auto* x = std::get_if<uint32_t>(&value)) gguf_set_val_u32(file, key, *x);
  if (const auto* x = std::get_if<float>(&value)) gguf_set_val_f32(file, key, *x);
  if (const auto* x = std::get_if<bool>(&value)) gguf_set_val_bool(file, key, *x);
  if (const auto* x = std::get_if<std::string>(&value)) gguf_set_val_str(file, key, x->c_str());
  if (const auto* x = std::get_if<std::vector<uint32_t>>(&value)) {
    gguf_set_arr_data(file, key, GGUF_TYPE_UINT32, x->data(), x->size());
  }
  if (const auto* x = std::get_if<std::vector<float>>(&value)) {
    gguf_set_arr_data(file, key, GGUF_TYPE_FLOAT32, x->data(), x->size());
  }
}

GgufPointer metadata_file(const std::string& architecture, const Metadata& changes) {
  Metadata metadata = common_metadata();
  for (const auto& [key, value] : changes) metadata[key] = value;
  GgufPointer file(gguf_init_empty(), gguf_free);
  gguf_set_val_str(file.get(), "general.architecture", architecture.c_str());
  for (const auto& [key, value] : metadata) {
    set(file.get(), key.starts_with('/') ? key.c_str() + 1 : (architecture + "." + key).c_str(), value);
  }
  return file;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Weights that keep activations near 1 and make attention matter.
void fill(ggml_tensor* tensor, void* names) {
  const std::string name = ggml_get_name(tensor);
  static_cast<std::set<std::string>*>(names)->insert(name);
  if (tensor->type != GGML_TYPE_F32) throw std::runtime_error("tensor " + name + " is not f32");
  std::mt19937 generator(static_cast<uint32_t>(std::hash<std::string>()(name)));
  std::normal_distribution<float> normal;
  const bool vector = ggml_n_dims(tensor) == 1;
  const float deviation = vector ? 0.2F : 1 / std::sqrt(static_cast<float>(tensor->ne[0]));
  const bool factor = contains(name, "norm") || contains(name, "scale");
  const float mean = vector && factor && !contains(name, "bias") ? 1.0F : 0.0F;
  std::vector<float> data(static_cast<size_t>(ggml_nelements(tensor)));
  for (float& x : data) x = mean + deviation * normal(generator);
  if (contains(name, "token_embd")) {
    for (float& x : data) x *= std::sqrt(static_cast<float>(tensor->ne[0]));
  }
  if (contains(name, "ssm_a")) {  // a decay
    for (float& x : data) x = -0.1F - std::abs(x);
  }
  if (contains(name, "rope_f")) {  // divisors of frequencies
    const float base = contains(name, "long") ? 4.0F : 1.0F;
    for (float& x : data) x = base + std::abs(x);
  }
  ggml_backend_tensor_set(tensor, data.data(), 0, ggml_nbytes(tensor));
}

}  // namespace

Metadata common_metadata() {
  constexpr uint32_t kLayers = 2, kEmbedding = 64, kHeads = 4;
  return {
      {"/tokenizer.ggml.model", "no_vocab"},
      {"vocab_size", uint32_t{kVocabulary}},
      {"context_length", kContext},
      {"block_count", kLayers},
      {"embedding_length", kEmbedding},
      {"feed_forward_length", 96U},
      {"leading_dense_block_count", 1U},
      {"full_attention_interval", 2U},
      {"use_parallel_residual", false},
      {"logit_scale", 1.0F},

      {"attention.head_count", kHeads},
      {"attention.head_count_kv", 2U},
      {"attention.max_alibi_bias", 8.0F},
      {"attention.clamp_kqv", 1.0F},
      {"attention.layer_norm_epsilon", 1e-5F},
      {"attention.layer_norm_rms_epsilon", 1e-5F},
      {"attention.group_norm_epsilon", 1e-5F},
      {"attention.group_norm_groups", 8U},
      {"attention.q_lora_rank", 24U},
      {"attention.kv_lora_rank", 32U},
      {"attention.relative_buckets_count", 8U},
      {"attention.sliding_window", kWindow},
      {"attention.sliding_window_pattern", 2U},
      {"attention.indexer.head_count", 64U},
      {"attention.indexer.key_length", 128U},
      {"attention.indexer.top_k", 8U},
      {"attention.indexer.block_size", 4U},
      {"attention.indexer.local_blocks", 1U},
      {"rope.dimension_sections", std::vector<uint32_t>{4, 4, 4, 4}},

      {"expert_feed_forward_length", 48U},
      {"expert_shared_feed_forward_length", 48U},
      {"expert_count", 2U},
      {"expert_used_count", 2U},
      {"expert_shared_count", 1U},
      {"expert_gating_func", 2U},
      {"expert_group_scale", 1.0F},
      {"experts_per_group", 1U},
      {"interleave_moe_layer_step", 2U},

      {"ssm.conv_kernel", 4U},
      {"ssm.inner_size", 2 * kEmbedding},
      {"ssm.state_size", 16U},
      {"ssm.time_step_rank", kHeads},
      {"ssm.group_count", 2U},
      {"shortconv.l_cache", 3U},
      {"kda.head_dim", 16U},
      {"wkv.head_size", 16U},
      {"time_mix_extra_dim", 16U},
      {"time_decay_extra_dim", 16U},
      {"/xielu.alpha_n", 1.0F},
      {"/xielu.alpha_p", 1.0F},
      {"/xielu.beta", 1.0F},
      {"/xielu.eps", 1e-7F},
  };
}

Metadata one_recurrent() {
  return {{"attention.head_count", Numbers{4, 0}}, {"attention.head_count_kv", Numbers{2, 0}}};
}

Metadata latent() {
  return {{"attention.head_count_kv", 1U},   {"attention.key_length", 40U},       {"attention.value_length", 32U},
          {"attention.key_length_mla", 24U}, {"attention.value_length_mla", 16U}, {"rope.dimension_count", 8U}};
}
Metadata attention_recurrence_neither() {
  return {{"block_count", 3U},
          {"attention.head_count", Numbers{4, 0, 0}},
          {"attention.head_count_kv", Numbers{2, 0, 0}},
          {"feed_forward_length", Numbers{0, 0, 96}}};
}

Metadata shared_caches() {
  return {{"block_count", 4U},
          {"attention.sliding_window_pattern", Numbers{1, 0, 1, 0}},
          {"attention.shared_kv_layers", 2U},
          {"attention.key_length", 32U},
          {"attention.value_length", 32U},
          {"attention.key_length_swa", 16U},
          {"attention.value_length_swa", 16U},
          {"rope.dimension_count", 32U},
          {"rope.dimension_count_swa", 16U},
          {"rope.freq_base_swa", 10000.0F},
          {"embedding_length_per_layer_input", 16U}};
}

HostOptions random_model(const std::string& architecture, const Metadata& changes) {
  HostOptions options;
  options.model = architecture;
  options.threads = 1;  // more would only wait for each other in models as small
  options.load = [architecture, changes](const llama_model_params& params, std::set<std::string>& tensors) {
    const GgufPointer file = metadata_file(architecture, changes);
    return llama_model_init_from_user(file.get(), fill, &tensors, params);
  };
  return options;
}

std::vector<Token> random_tokens(int count) {
  std::mt19937 generator(1);
  std::vector<Token> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(static_cast<Token>(generator() % kVocabulary));
  return tokens;
}

}  // namespace veloxquant::llama::test
