#include "hosts/llama/graph_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace veloxquant::llama {
namespace {

constexpr std::string_view kKeyPrefix = "cache_k_l";
constexpr std::string_view kValuePrefix = "cache_v_l";

/// Value of a metadata key, 0 where it is missing or no number.
double number(const ModelFacts& model, const std::string& key) {
  const auto found = model.metadata.find(key);
  return found == model.metadata.end() ? 0 : std::strtod(found->second.c_str(), nullptr);
}

bool has_tensor_ending(const ModelFacts& model, std::string_view suffix) {
  return std::any_of(model.tensors.begin(), model.tensors.end(),
                     [&](const std::string& name) { return name.ends_with(suffix); });
}

/// Rows of llama's caches written and read per layer.
struct LayerUse {
  int key_writes = 0, value_writes = 0;
  std::vector<const AttentionFacts*> readers;
};

std::optional<std::string> refuse_use(int layer, const LayerUse& use) {
  if (use.readers.empty()) {
    return fmt::format("layer {} does not use flash attention, which is where our attention is put in", layer);
  }
  if (use.readers.size() > 1) {
    return fmt::format("layers share the KV cache of layer {}, which is not supported", layer);
  }
  if (use.key_writes != 1 || use.value_writes != 1) {
    return fmt::format("layer {} writes its keys {} times and its values {} times a call instead of once", layer,
                       use.key_writes, use.value_writes);
  }
  return refuse_attention(*use.readers.front());
}

LayerShape shape_of(int layer, const AttentionFacts& node) {
  return {.kv_heads = node.key_heads,
          .q_heads = node.q_heads,
          .dim_k = node.dim_k,
          .dim_v = node.dim_v,
          .layer = layer,
          .input = DType::f32};
}

}  // namespace

std::optional<CacheName> parse_cache_name(std::string_view name) {
  const bool key = name.starts_with(kKeyPrefix);
  if (!key && !name.starts_with(kValuePrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kKeyPrefix.size());
  CacheName cache{key ? Side::key : Side::value, 0};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), cache.layer);
  if (error != std::errc{} || end != digits.data() + digits.size() || cache.layer < 0) return std::nullopt;
  return cache;
}

bool is_foreign_cache(std::string_view name) {
  return (name.starts_with("cache_") && !parse_cache_name(name)) || name.starts_with("dsv4_");
}

std::vector<float> alibi_slopes(float max_bias, int heads) {
  if (max_bias <= 0) return {};
  const int base_heads = 1 << static_cast<int>(std::floor(std::log2(heads)));
  const float m0 = std::pow(2.0F, -max_bias / static_cast<float>(base_heads));
  const float m1 = std::pow(2.0F, -max_bias / 2.0F / static_cast<float>(base_heads));
  std::vector<float> slopes;
  for (int h = 0; h < heads; ++h) {
    slopes.push_back(h < base_heads ? std::pow(m0, static_cast<float>(h + 1))
                                    : std::pow(m1, static_cast<float>(2 * (h - base_heads) + 1)));
  }
  return slopes;
}

std::optional<std::string> refuse_model(const ModelFacts& model) {
  if (number(model, "split.count") > 1) {
    return "it is split over several files; join them first (llama-gguf-split --merge)";
  }
  if (model.encoder || !model.decoder) return "it has an encoder; only decoder models are supported";
  const auto causal = model.metadata.find("attention.causal");
  if (model.diffusion || (causal != model.metadata.end() && causal->second == "false")) {
    return "its attention is not causal";
  }
  if (model.recurrent || model.hybrid) return "it keeps recurrent state, which is not supported";
  if (model.window > 0) {
    return fmt::format("it uses sliding window or chunked attention (window {}), which is not supported", model.window);
  }
  if (number(model, "attention.kv_lora_rank") > 0) {
    return "it uses multi-head latent attention (MLA), which is not supported";
  }
  if (number(model, "ple.ngram_size") > 0 || number(model, "ngram_size") > 0) {
    return "its embeddings depend on earlier tokens (n-grams), which is not supported";
  }
  // llama chooses the RoPE factors by its own context size, which says nothing about ours.
  if (has_tensor_ending(model, "rope_factors_long.weight") &&
      model.trained_context > number(model, "rope.scaling.original_context_length")) {
    return "its RoPE factors depend on the context size (LongRoPE), which is not supported";
  }
  return std::nullopt;
}

std::optional<std::string> refuse_attention(const AttentionFacts& node) {
  const std::optional<CacheName> key = parse_cache_name(node.key_cache), value = parse_cache_name(node.value_cache);
  if (node.key_cache == node.value_cache && key) {
    return fmt::format("layer {} uses multi-head latent attention (MLA), which is not supported", key->layer);
  }
  if (!key || key->side != Side::key || !value || value->side != Side::value || key->layer != value->layer) {
    return fmt::format("it attends to '{}' and '{}', which is no plain KV cache", node.key_cache, node.value_cache);
  }
  const auto refuse = [&](std::string_view what) { return fmt::format("layer {} {}", key->layer, what); };
  if (node.sparse_rows > 0 || !node.mask_is_input) return refuse("uses sparse attention, which is not supported");
  if (!node.on_host) return refuse("keeps its cache outside the CPU's memory");
  if (!node.f32) return refuse("has queries or outputs that are not f32");
  if (node.streams != 1) return refuse("attends to several streams at once");
  if (node.key_heads < 1 || node.key_heads != node.value_heads || node.q_heads % node.key_heads != 0) {
    return refuse(fmt::format("has {} query, {} key and {} value heads, which do not divide", node.q_heads,
                              node.key_heads, node.value_heads));
  }
  if (node.softcap != 0) return refuse("caps its attention logits (softcap), which is not supported");
  if (node.sinks) return refuse("uses attention sinks, which is not supported");
  return std::nullopt;
}

GraphVerdict judge_graph(const GraphFacts& graph) {
  std::map<int, LayerUse> uses;
  for (const std::string& name : graph.writes) {
    const std::optional<CacheName> cache = parse_cache_name(name);
    if (!cache) return {{}, fmt::format("it keeps a cache of another kind ('{}'), which is not supported", name)};
    ++(cache->side == Side::key ? uses[cache->layer].key_writes : uses[cache->layer].value_writes);
  }
  for (const AttentionFacts& node : graph.attention) {
    const std::optional<CacheName> cache = parse_cache_name(node.key_cache);
    if (!cache) return {{}, refuse_attention(node)};
    uses[cache->layer].readers.push_back(&node);
  }
  if (uses.empty()) return {{}, "it has no KV cache"};
  GraphVerdict verdict;
  for (const auto& [layer, use] : uses) {
    if (auto refusal = refuse_use(layer, use)) return {{}, std::move(refusal)};
    verdict.layers.push_back(shape_of(layer, *use.readers.front()));
  }
  return verdict;
}

}  // namespace veloxquant::llama
