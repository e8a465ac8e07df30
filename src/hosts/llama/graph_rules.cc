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
constexpr std::string_view kConvolutionPrefix = "cache_r_l";
constexpr std::string_view kStatePrefix = "cache_s_l";

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

LayerRule rule_of(const AttentionFacts& node) {
  return {.fused = node.fused, .softcap = node.softcap != 0, .sinks = node.sinks, .alibi = node.max_bias > 0};
}

LayerDesc layer_of(const AttentionFacts& node, const WindowRule& rule) {
  return {.dim_k = node.dim_k,
          .dim_v = node.dim_v,
          .value_is_key_prefix = values_in_keys(node),
          .n_kv_heads = node.key_heads,
          .n_q_heads = node.q_heads,
          .window = rule.window,
          .chunk = rule.chunk};
}

/// The number behind `prefix`, if a layer's number is all there is.
std::optional<int> number_behind(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::string_view digits = name.substr(prefix.size());
  int layer = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  if (error != std::errc{} || end != digits.data() + digits.size() || layer < 0) return std::nullopt;
  return layer;
}

/// Layers without attention, with the states that the graph has touched.
std::vector<LayerDesc> layers_without_caches(const GraphFacts& graph, const std::map<int, LayerUse>& uses) {
  int count = std::max(graph.layers, uses.rbegin()->first + 1);
  for (const std::string& name : graph.states) count = std::max(count, parse_state_name(name).value_or(0) + 1);
  std::vector<LayerDesc> layers(static_cast<size_t>(count), {.kind = LayerDesc::Kind::none});
  for (const std::string& name : graph.states) {
    const std::optional<int> index = parse_state_name(name);
    if (!index) continue;
    LayerDesc& layer = layers[static_cast<size_t>(*index)];
    layer.kind = LayerDesc::Kind::recurrent;
    if (layer.native_cache.empty()) layer.native_cache = "conv";
    if (!name.starts_with(kConvolutionPrefix)) layer.native_cache = "recurrent";
  }
  return layers;
}

/// Gives the later readers of caches, in the graph's order, to the layers that have nothing of their own.
void describe_sharing(std::vector<LayerDesc>& layers, std::span<const int> caches) {
  std::vector<size_t> idle;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].kind == LayerDesc::Kind::none) idle.push_back(i);
  }
  if (idle.size() != caches.size()) return;
  for (size_t i = 0; i < idle.size(); ++i) {
    LayerDesc& layer = layers[idle[i]];
    layer = layers[static_cast<size_t>(caches[i])];
    layer.native_cache.clear();
    layer.shares_with = caches[i];
  }
}

}  // namespace

std::optional<CacheName> parse_cache_name(std::string_view name) {
  if (const auto layer = number_behind(kKeyPrefix, name)) return CacheName{Side::key, *layer};
  if (const auto layer = number_behind(kValuePrefix, name)) return CacheName{Side::value, *layer};
  return std::nullopt;
}

std::optional<int> parse_state_name(std::string_view name) {
  const std::optional<int> layer = number_behind(kConvolutionPrefix, name);
  return layer ? layer : number_behind(kStatePrefix, name);
}

bool is_foreign_cache(std::string_view name) {
  // States of recurrent layers stay in llama's hands, where the keep of the last cell preserves them.
  if (name.starts_with(kConvolutionPrefix) || name.starts_with(kStatePrefix)) return false;
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
  const auto refused = [](std::optional<std::string> why) { return GraphVerdict{{}, {}, std::move(why)}; };
  std::map<int, LayerUse> uses;
  for (const std::string& name : graph.writes) {
    const std::optional<CacheName> cache = parse_cache_name(name);
    if (!cache) return refused(fmt::format("it keeps a cache of another kind ('{}'), which is not supported", name));
    ++(cache->side == Side::key ? uses[cache->layer].key_writes : uses[cache->layer].value_writes);
  }
  if (uses.empty()) return refused("it has no KV cache");
  std::vector<int> later_readers;  // by the cache they read
  for (const AttentionFacts& node : graph.attention) {
    const std::optional<CacheName> cache = parse_cache_name(node.key_cache);
    if (!cache) return refused(refuse_attention(node));
    LayerUse& use = uses[cache->layer];
    if (!use.readers.empty()) later_readers.push_back(cache->layer);
    use.readers.push_back(&node);
  }
  GraphVerdict verdict;
  verdict.model = {.name = graph.architecture, .layers = layers_without_caches(graph, uses)};
  for (const auto& [index, use] : uses) {
    if (auto refusal = refuse_use(index, use)) return refused(std::move(refusal));
    const AttentionFacts& node = *use.readers.front();
    const auto rule = graph.window == 0 ? WindowRule{} : window_rule(node.visible, graph.window);
    if (!rule) {
      return refused(fmt::format("layer {} has a mask that is neither causal, nor a window, nor chunks", index));
    }
    LayerDesc& layer = verdict.model.layers[static_cast<size_t>(index)];
    std::string native_cache = std::move(layer.native_cache);
    layer = layer_of(node, *rule);
    layer.native_cache = std::move(native_cache);
    if (const auto rope = graph.ropes.find(index); rope != graph.ropes.end()) layer.rope = rope_of(rope->second);
    verdict.rules.push_back(rule_of(node));
  }
  describe_sharing(verdict.model.layers, later_readers);
  return verdict;
}

std::string attention_kind(const ModelFacts& facts, const ModelDesc& model, std::span<const LayerRule> rules) {
  std::vector<std::string> parts;
  std::vector<const LayerDesc*> owners;
  std::set<int> shared;
  for (const LayerDesc& layer : model.layers) {
    if (layer.owns_cache()) owners.push_back(&layer);
    if (layer.shares_with >= 0) shared.insert(layer.shares_with);
  }
  const auto add = [&](std::string name, auto count) {
    const auto layers_with = static_cast<size_t>(count);
    if (layers_with == 0) return;
    if (layers_with < owners.size()) name += fmt::format(" in {} of {} layers", layers_with, owners.size());
    parts.push_back(std::move(name));
  };
  const auto add_size = [&](std::string_view name, int LayerDesc::*size) {
    int largest = 0;
    for (const LayerDesc* layer : owners) largest = std::max(largest, layer->*size);
    add(fmt::format("{} {}", name, largest),
        std::ranges::count_if(owners, [&](const LayerDesc* layer) { return layer->*size > 0; }));
  };
  const auto any = [&](auto&& is) { return std::ranges::any_of(owners, is); };
  const bool latent = any([](const LayerDesc* layer) { return layer->value_is_key_prefix; });
  const bool grouped = any([](const LayerDesc* layer) { return layer->n_q_heads != layer->n_kv_heads; });
  parts.push_back(latent ? "multi-head latent" : grouped ? "grouped heads" : "a KV head per head");
  add_size("window", &LayerDesc::window);
  add_size("chunks of", &LayerDesc::chunk);
  add("ALiBi", std::ranges::count(rules, true, &LayerRule::alibi));
  add("softcap", std::ranges::count(rules, true, &LayerRule::softcap));
  add("sinks", std::ranges::count(rules, true, &LayerRule::sinks));
  add("shared by later layers", shared.size());
  add("no flash attention", std::ranges::count(rules, false, &LayerRule::fused));
  if (facts.tensors.contains("position_embd.weight")) parts.push_back("learned positions");
  if (has_tensor_ending(facts, "rope_factors_long.weight")) parts.push_back("LongRoPE");
  if (facts.hybrid) parts.push_back("beside recurrent layers");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace veloxquant::llama
