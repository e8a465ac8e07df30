// The caches of a whole model from one configuration.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "veloxquant/cache_set.h"
#include "veloxquant/config.h"
#include "veloxquant/model_desc.h"

namespace veloxquant {

/// What stands for one layer of the model.
struct LayerChoice {
  enum class Kind : uint8_t {
    compressed,  ///< a cache of the configured method
    shared,      ///< none of its own: the layer reads another one's
    native,      ///< the model's own cache for a layer without attention
    plain,       ///< an exact cache that nothing will be stored in, so that every layer has an entry
  };
  Kind kind = Kind::plain;
  int attention_index = -1;  ///< among the layers with a cache of the method
  int cache = -1;            ///< index in the cache set; -1: native
  KVCacheConfig config{};    ///< the given one with this layer's head_dim, bits and resolved values
  int64_t seed = 0;          ///< config seed + raw index
  std::string group;         ///< place among layers that share something, or empty
  std::string reason;        ///< of a native, shared or plain entry
};

struct ModelPlan {
  std::vector<LayerChoice> layers;  ///< one for every layer of the model, in its order
  std::vector<std::string> notes;   ///< what was overwritten, and options without effect
  /// A line for each layer: kind, bits, budget, group, reason; then the notes.
  std::string report() const;
};

/// What for_model will build; works for methods too that can't be built yet. Throws QuantizerConfigError: methods of
/// single vectors (those that serve models are named), a list of bits whose length is not the number of attention
/// layers or with a method of no single width, layers of one group that differ, and all problems of single layers.
ModelPlan plan_model(const ModelDesc& model, const KVCacheConfig& config, DType input = DType::f32);

/// Caches and what they stand for.
struct ModelCaches {
  ModelPlan plan;
  CacheSet caches;

  /// Of a layer by its raw index; null where the model's own cache serves it.
  KVCache* cache(int layer) {
    const int index = plan.layers.at(static_cast<size_t>(layer)).cache;
    return index < 0 ? nullptr : &caches[index];
  }
  /// With kivi_sink and sink_signal = external: positions that every layer keeps exact, of one batch row.
  void set_sink_positions(int batch_row, std::span<const int32_t> positions);
};
/// `model` outlives the caches: they point at its RoPE parameters.
ModelCaches for_model(const ModelDesc& model, const KVCacheConfig& config, DType input = DType::f32);

}  // namespace veloxquant
