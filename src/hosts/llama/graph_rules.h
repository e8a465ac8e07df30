// What the host decides about a model and its graph, in neutral terms: no ggml or llama type appears here, so that
// every rule is tested without libllama. The hook fills the descriptions, the host acts on the answers.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hosts/llama/rope_rules.h"
#include "veloxquant/model_desc.h"

namespace veloxquant::llama {

/// A tensor of llama's plain attention cache: "cache_k_l<il>" or "cache_v_l<il>".
struct CacheName {
  Side side = Side::key;
  int layer = 0;
};
/// Nothing for any other name; "cache_idx_k_l0", "cache_r_l0" and the like belong to caches of other kinds.
std::optional<CacheName> parse_cache_name(std::string_view name);
/// The layer of a state of a recurrent layer: "cache_r_l<il>" (of its convolution) or "cache_s_l<il>".
std::optional<int> parse_state_name(std::string_view name);
/// A cache of llama's that is neither a plain attention cache nor the state of a recurrent layer.
bool is_foreign_cache(std::string_view name);

/// Slope per query head of ALiBi (arXiv:2108.12409), as ggml computes it. Empty when max_bias is 0.
std::vector<float> alibi_slopes(float max_bias, int heads);

/// What is known of a model before it computes anything.
struct ModelFacts {
  std::string architecture;
  std::map<std::string, std::string> metadata;  ///< scalar values; "<architecture>." is cut off the keys
  std::set<std::string> tensors;
  int trained_context = 0;
  int window = 0;  ///< of sliding or chunked attention; 0: none
  bool encoder = false, decoder = true, recurrent = false, hybrid = false, diffusion = false;
};
/// Why the model can't be served, or nothing.
std::optional<std::string> refuse_model(const ModelFacts& model);

/// Models with LongRoPE have two sets of RoPE factors, and llama chooses by the size of its own context, which says
/// nothing about ours. The original context of the model, where `context` tokens want the factors for long ones.
std::optional<int> long_rope(const ModelFacts& model, int context);

/// Which of the earlier rows a query sees; 0 and 0: all of them.
struct WindowRule {
  int window = 0;  ///< the rows less than this far behind it
  int chunk = 0;   ///< the rows of its own chunk of so many positions
  bool operator==(const WindowRule&) const = default;
};

/// llama tells the size of a model's window, but not which layers have it. So the rule of a layer is read off the mask
/// of one query at position 2 * size, in a cache that holds the cells of these positions, in this order:
constexpr std::array<int, 5> probe_positions(int size) { return {0, 2 * size - 1, size, size + 1, 2 * size}; }
/// The rule by which a query sees these and no other of the probe's cells; nothing where none does.
std::optional<WindowRule> window_rule(std::span<const uint8_t> visible, int size);

/// One attention node of a graph: a flash attention node, or what stands for the product of queries and keys in a
/// graph without.
struct AttentionFacts {
  std::string key_cache, value_cache;  ///< names of the tensors that K and V are views of
  bool f32 = true;                     ///< queries and output
  bool on_host = true;                 ///< the cache lies in memory the CPU reads
  bool mask_is_input = true;           ///< the mask is llama's own input and not computed in the graph
  int sparse_rows = 0;                 ///< > 0: the rows a query sees are chosen in the graph
  int streams = 1;
  float scale = 0, max_bias = 0, softcap = 0;
  bool sinks = false;
  bool fused = true;                ///< a flash attention node
  bool bias = false;                ///< something is added to the logits
  bool values_at_key_start = true;  ///< where K and V are views of one tensor
  int q_heads = 0, key_heads = 0, value_heads = 0, dim_k = 0, dim_v = 0;
  std::vector<uint8_t> visible;  ///< of the first cells, to the last query
};
std::optional<std::string> refuse_attention(const AttentionFacts& node);

/// What one decode of one token did, after that of the probe where the model has a window.
struct GraphFacts {
  std::string architecture;
  int layers = 0;  ///< of the model, whatever they are
  int window = 0;  ///< size of the model's window, 0: none
  std::vector<AttentionFacts> attention;
  std::vector<std::string> writes;  ///< names of the cache tensors that rows were written to
  std::set<std::string> states;     ///< names of the states of recurrent layers
  std::map<int, RopeFacts> ropes;   ///< of the keys' rotations by layer, where they are the last thing done to them
};

/// What the attention of a layer does to its logits.
struct LayerRule {
  bool fused = true, softcap = false, sinks = false, alibi = false;
};

struct GraphVerdict {
  ModelDesc model;                     ///< an entry per layer of llama's
  std::vector<LayerRule> rules;        ///< of the layers that own a cache, by rising layer
  std::optional<std::string> refusal;  ///< then the model has no layers
};
/// The graph does not say which layer an attention node belongs to, where it reads the cache of an earlier one. Those
/// nodes are counted off over the layers that have neither a cache nor a state, and left out where these are not as
/// many.
GraphVerdict judge_graph(const GraphFacts& graph);

/// "grouped heads, window 512 in 15 of 18 layers, softcap": for people.
std::string attention_kind(const ModelFacts& facts, const ModelDesc& model, std::span<const LayerRule> rules);

}  // namespace veloxquant::llama
