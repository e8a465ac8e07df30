// What the host decides about a model and its graph, in neutral terms: no ggml or llama type appears here, so that
// every rule is tested without libllama. The hook fills the descriptions, the host acts on the answers.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "veloxquant/types.h"

namespace veloxquant::llama {

/// A tensor of llama's plain attention cache: "cache_k_l<il>" or "cache_v_l<il>".
struct CacheName {
  Side side = Side::key;
  int layer = 0;
};
/// Nothing for any other name; "cache_idx_k_l0", "cache_r_l0" and the like belong to caches of other kinds.
std::optional<CacheName> parse_cache_name(std::string_view name);
/// A cache of llama's that is not a plain attention cache.
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

/// One fused attention node of a graph.
struct AttentionFacts {
  std::string key_cache, value_cache;  ///< names of the tensors that K and V are views of
  bool f32 = true;                     ///< queries and output
  bool on_host = true;                 ///< the cache lies in memory the CPU reads
  bool mask_is_input = true;           ///< the mask is llama's own input and not computed in the graph
  int sparse_rows = 0;                 ///< > 0: the rows a query sees are chosen in the graph
  int streams = 1;
  float scale = 0, max_bias = 0, softcap = 0;
  bool sinks = false;
  int q_heads = 0, key_heads = 0, value_heads = 0, dim_k = 0, dim_v = 0;
};
std::optional<std::string> refuse_attention(const AttentionFacts& node);

/// What one decode of one token did.
struct GraphFacts {
  std::vector<AttentionFacts> attention;
  std::vector<std::string> writes;  ///< names of the cache tensors that rows were written to
};
struct GraphVerdict {
  std::vector<LayerShape> layers;      ///< of the caches to build, by rising layer
  std::optional<std::string> refusal;  ///< then `layers` is empty
};
GraphVerdict judge_graph(const GraphFacts& graph);

}  // namespace veloxquant::llama
