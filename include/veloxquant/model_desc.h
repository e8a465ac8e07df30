// What caches are built from: a model's layers, described by an engine, by a model's JSON configuration or by hand.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "veloxquant/rope.h"
#include "veloxquant/types.h"

namespace veloxquant {

/// Limits of check(); no model comes near them.
inline constexpr int kMostLayers = 10000;
inline constexpr int kMostHeads = 65536;       ///< of keys or of queries, in one layer
inline constexpr int kLargestHeadDim = 65536;  ///< channels of one head

/// One layer of a model.
struct LayerDesc {
  enum class Kind : uint8_t {
    attention,  ///< keys and values, of its own or of another layer
    recurrent,  ///< a state of fixed size (state space, linear attention, convolution)
    none,       ///< nothing that outlives a token
  };
  Kind kind = Kind::attention;
  bool has_attention() const { return kind == Kind::attention; }
  /// Whether it is read by queries and no other layer's cache is what they read.
  bool owns_cache() const { return has_attention() && shares_with < 0; }

  // What follows is of layers with attention alone. A layer that shares has what the other one has.
  int dim_k = 0, dim_v = 0;          ///< channels of one head
  bool value_is_key_prefix = false;  ///< values are the first dim_v channels of the one head of keys (latent attention)
  int n_kv_heads = 0, n_q_heads = 0;
  std::optional<RopeSpec> rope = {};  ///< how keys and queries are rotated, where that is known
  int window = 0;                     ///< a query sees the rows less than this far behind it; 0: all
  int chunk = 0;                      ///< a query sees its own chunk of so many positions; 0: all
  int shares_with = -1;               ///< index of the earlier layer whose keys and values it reads; -1: its own

  /// The model's own cache for this layer, "mamba", "recurrent" or "conv", in place of keys and values or beside them;
  /// empty: none.
  std::string native_cache = {};
};

struct ModelDesc {
  std::string name;               ///< for messages: the architecture
  std::vector<LayerDesc> layers;  ///< in the model's order; an index here is the raw index of a layer
};

/// Throws QuantizerConfigError with all problems; each names the layer, what is given and what is allowed.
void check(const ModelDesc& model);

/// The shapes of the layers that have a cache of their own, in order. Each points at the rope of its layer, so `model`
/// outlives the shapes and the caches made from them. Throws as check() does.
std::vector<LayerShape> attention_shapes(const ModelDesc& model, DType input = DType::f32);

/// From the text of a config.json as Hugging Face models have it. Throws QuantizerConfigError that names the keys, what
/// was given and what is wanted; also for text that is no JSON.
ModelDesc model_from_config(std::string_view json);

}  // namespace veloxquant
