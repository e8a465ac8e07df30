#include "hosts/llama/graph_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <tuple>

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

bool values_in_keys(const AttentionFacts& node) { return node.key_cache == node.value_cache; }

std::optional<std::string> refuse_use(int layer, const LayerUse& use) {
  if (use.readers.empty()) {
    return fmt::format("layer {} stores keys and values, but its attention was not found", layer);
  }
  const AttentionFacts& first = *use.readers.front();
  for (const AttentionFacts* node : use.readers) {
    if (auto refusal = refuse_attention(*node)) return refusal;
    const auto geometry = [](const AttentionFacts& n) {
      return std::tuple(n.value_cache, n.q_heads, n.key_heads, n.dim_k, n.dim_v, n.visible);
    };
    if (geometry(*node) != geometry(first)) {
      return fmt::format("layers that share the KV cache of layer {} read it in different ways", layer);
    }
  }
  const int values = values_in_keys(first) ? 0 : 1;
  if (use.key_writes != 1 || use.value_writes != values) {
    return fmt::format("layer {} writes its keys {} times and its values {} times a call instead of 1 and {}", layer,
                       use.key_writes, use.value_writes, values);
  }
  return std::nullopt;
}

LayerRule rule_of(const LayerUse& use) {
  const AttentionFacts& node = *use.readers.front();
  LayerRule rule;
  rule.values_in_keys = values_in_keys(node);
  rule.readers = static_cast<int>(use.readers.size());
  rule.fused = node.fused;
  rule.softcap = node.softcap != 0;
  rule.sinks = node.sinks;
  rule.alibi = node.max_bias > 0;
  return rule;
}

LayerShape shape_of(int layer, const AttentionFacts& node) {
  return {.kv_heads = node.key_heads,
          .q_heads = node.q_heads,
          .dim_k = node.dim_k,
          .dim_v = node.dim_v,
          .layer = layer,
          .input = DType::f32,
          .value_is_key_prefix = node.key_cache == node.value_cache};
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
  // States of recurrent layers stay in llama's hands, where the keep of the last cell preserves them.
  if (name.starts_with("cache_r_l") || name.starts_with("cache_s_l")) return false;
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
  if (model.recurrent && !model.hybrid) return "all of its layers are recurrent: it has no KV cache";
  if (number(model, "ple.ngram_size") > 0 || number(model, "ngram_size") > 0) {
    return "its embeddings depend on earlier tokens (n-grams), which is not supported";
  }
  return std::nullopt;
}

std::optional<int> long_rope(const ModelFacts& model, int context) {
  const auto original = static_cast<int>(number(model, "rope.scaling.original_context_length"));
  if (!has_tensor_ending(model, "rope_factors_long.weight") || original <= 0 || context <= original)
    return std::nullopt;
  return original;
}

std::optional<WindowRule> window_rule(std::span<const uint8_t> visible, int size) {
  const std::array<int, 5> positions = probe_positions(size);
  if (size < 1 || visible.size() < positions.size()) return std::nullopt;
  const int query = positions.back();
  for (const WindowRule& rule : {WindowRule{}, WindowRule{.window = size}, WindowRule{.chunk = size}}) {
    const auto sees = [&](int position) {
      return (rule.window == 0 || query - position < rule.window) &&
             (rule.chunk == 0 || position >= query / rule.chunk * rule.chunk);
    };
    const auto fits = [&](size_t i) { return (visible[i] != 0) == sees(positions[i]); };
    if (fits(0) && fits(1) && fits(2) && fits(3) && fits(4)) return rule;
  }
  return std::nullopt;
}

std::optional<std::string> refuse_attention(const AttentionFacts& node) {
  const std::optional<CacheName> key = parse_cache_name(node.key_cache), value = parse_cache_name(node.value_cache);
  const bool one = values_in_keys(node);
  if (!key || key->side != Side::key ||
      (!one && (!value || value->side != Side::value || key->layer != value->layer))) {
    if (node.key_cache.starts_with("node_")) return "it attends to rows chosen in the graph, not to its KV cache";
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
  if (one && (node.key_heads != 1 || !node.values_at_key_start || node.dim_v > node.dim_k)) {
    return refuse("has values that are not the first channels of one head of keys");
  }
  if (node.bias) return refuse("adds a bias to its attention logits, which is not supported");
  return std::nullopt;
}

GraphVerdict judge_graph(const GraphFacts& graph) {
  std::map<int, LayerUse> uses;
  for (const std::string& name : graph.writes) {
    const std::optional<CacheName> cache = parse_cache_name(name);
    if (!cache) return {{}, {}, fmt::format("it keeps a cache of another kind ('{}'), which is not supported", name)};
    ++(cache->side == Side::key ? uses[cache->layer].key_writes : uses[cache->layer].value_writes);
  }
  if (uses.empty()) return {{}, {}, "it has no KV cache"};
  for (const AttentionFacts& node : graph.attention) {
    const std::optional<CacheName> cache = parse_cache_name(node.key_cache);
    if (!cache) return {{}, {}, refuse_attention(node)};
    uses[cache->layer].readers.push_back(&node);
  }
  GraphVerdict verdict;
  for (const auto& [layer, use] : uses) {
    if (auto refusal = refuse_use(layer, use)) return {{}, {}, std::move(refusal)};
    verdict.layers.push_back(shape_of(layer, *use.readers.front()));
    verdict.rules.push_back(rule_of(use));
    if (graph.window == 0) continue;
    const auto rule = window_rule(use.readers.front()->visible, graph.window);
    if (!rule)
      return {{}, {}, fmt::format("layer {} has a mask that is neither causal, nor a window, nor chunks", layer)};
    verdict.rules.back().window = *rule;
  }
  return verdict;
}

std::string attention_kind(const ModelFacts& model, std::span<const LayerShape> layers,
                           std::span<const LayerRule> rules) {
  std::vector<std::string> parts;
  const auto count = [&](auto&& is) { return std::count_if(rules.begin(), rules.end(), is); };
  const auto add = [&](std::string name, auto&& is) {
    const auto layers_with = count(is);
    if (layers_with == 0) return;
    if (static_cast<size_t>(layers_with) < rules.size()) {
      name += fmt::format(" in {} of {} layers", layers_with, rules.size());
    }
    parts.push_back(std::move(name));
  };
  const auto largest = [&](int WindowRule::*size) {
    int result = 0;
    for (const LayerRule& rule : rules) result = std::max(result, rule.window.*size);
    return result;
  };
  const bool grouped =
      std::any_of(layers.begin(), layers.end(), [](const LayerShape& s) { return s.q_heads != s.kv_heads; });
  const bool latent = count([](const LayerRule& r) { return r.values_in_keys; }) > 0;
  parts.push_back(latent ? "multi-head latent" : grouped ? "grouped heads" : "a KV head per head");
  add(fmt::format("window {}", largest(&WindowRule::window)), [](const LayerRule& r) { return r.window.window > 0; });
  add(fmt::format("chunks of {}", largest(&WindowRule::chunk)), [](const LayerRule& r) { return r.window.chunk > 0; });
  add("ALiBi", [](const LayerRule& r) { return r.alibi; });
  add("softcap", [](const LayerRule& r) { return r.softcap; });
  add("sinks", [](const LayerRule& r) { return r.sinks; });
  add("shared by later layers", [](const LayerRule& r) { return r.readers > 1; });
  add("no flash attention", [](const LayerRule& r) { return !r.fused; });
  if (model.tensors.contains("position_embd.weight")) parts.push_back("learned positions");
  if (has_tensor_ending(model, "rope_factors_long.weight")) parts.push_back("LongRoPE");
  if (model.hybrid) parts.push_back("beside recurrent layers");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace veloxquant::llama
