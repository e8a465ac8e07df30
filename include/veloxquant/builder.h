// From a configuration to a cache.
//
//   AnyCache cache = KVCacheBuilder().with_method("turboquant_prod").with_head_dim(128).with_bit_width(2).build();
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "veloxquant/config.h"
#include "veloxquant/for_model.h"
#include "veloxquant/layer_cache.h"
#include "veloxquant/vector_cache.h"

namespace veloxquant {

/// A layer's cache, or a cache of single vectors with or without a window.
using AnyCache = std::variant<LayerCache, VectorCache, SlidingWindowKVCache>;

/// STANDALONE_METHODS of the original system: they store single vectors and serve no model. Sorted.
const std::vector<std::string>& standalone_methods();
bool is_standalone(std::string_view method);

struct KVCacheFactory {
  /// Throws QuantizerConfigError with all problems: everything KVCacheConfig::problems() finds, a list of bits
  /// (for_model takes it), sliding_window with a method that stores layers, what the method can't be given.
  static AnyCache create(const KVCacheConfig& config);
};

/// Records values and checks them all in build().
class KVCacheBuilder {
 public:
  KVCacheBuilder& with_method(std::string method);
  KVCacheBuilder& with_head_dim(int64_t d);  ///< a power of two, at least 2: for other sizes use the factory
  KVCacheBuilder& with_bit_width(int64_t inlier, std::optional<int64_t> outlier = std::nullopt);
  /// One number for each attention layer: such a builder gives config() to for_model.
  KVCacheBuilder& with_bit_width(IntegerList inlier, std::optional<int64_t> outlier = std::nullopt);
  KVCacheBuilder& with_jl_dim(int64_t m);  ///< at most head_dim; qjl: 16 head_dim
  KVCacheBuilder& with_n_outlier_channels(int64_t n);
  KVCacheBuilder& with_n_calib_tokens(int64_t n);
  KVCacheBuilder& with_vectorized_attend(bool enabled = true);
  KVCacheBuilder& with_outlier_two_stream(bool enabled = true);
  KVCacheBuilder& with_fused_query_dot(bool enabled = true);
  KVCacheBuilder& with_seed(int64_t seed);
  KVCacheBuilder& with_precision(DType dtype);
  KVCacheBuilder& with_capacity(int64_t max_tokens);
  KVCacheBuilder& with_artifact_store(std::shared_ptr<ArtifactStore> store);
  KVCacheBuilder& with_observer(std::shared_ptr<QuantizationObserver> observer);
  KVCacheBuilder& with_sliding_window(int64_t window_size);
  KVCacheBuilder& with_options(MethodOptions options);  ///< an addition

  const KVCacheConfig& config() const { return config_; }
  /// What build() would throw, a line each.
  std::vector<std::string> problems() const;
  AnyCache build() const;
  static ModelCaches for_model(const ModelDesc& model, const KVCacheConfig& config, DType input = DType::f32) {
    return veloxquant::for_model(model, config, input);
  }

 private:
  KVCacheConfig config_;
  bool null_store_ = false;
};

}  // namespace veloxquant
