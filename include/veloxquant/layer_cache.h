// The cache of a layer as the original system has it: made from a configuration alone, its number of heads fixed by the
// first tensors. It adds no state to KVCache but the configuration.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "veloxquant/cache.h"
#include "veloxquant/config.h"
#include "veloxquant/vector_cache.h"

namespace veloxquant {

class LayerCache {
 public:
  /// `layer_id`: raw index in the model; random numbers follow from seed + layer_id. Throws QuantizerConfigError with
  /// all problems, for cross-field rules and for methods that store single vectors alone too.
  explicit LayerCache(const KVCacheConfig& config, int layer_id = 0);
  /// With the geometry given, which then the first call has to have.
  LayerCache(const KVCacheConfig& config, const LayerShape& shape);

  // The protocol of KVCache, under the same names and rules.
  KVCache::Fetched update_and_fetch(const Tensor& k, const Tensor& v, const CallInfo& info = {});
  KVCache::Fetched update_and_fetch(const Tensor& k, const Tensor& v, const AttendIn& queries,
                                    const CallInfo& info = {});
  std::vector<float> step(const AttendIn& in, const Tensor& k, const Tensor& v, const CallInfo& info = {});
  std::vector<float> attend(const AttendIn& in) { return cache_.attend(in); }
  Mask make_mask(int tokens, bool return_array = false, int window_size = 0) {
    return cache_.make_mask(tokens, return_array, window_size);
  }
  int offset() const { return cache_.offset(); }
  int offset(int batch_row) const { return cache_.offset(batch_row); }
  int size() { return cache_.size(); }
  bool empty() const { return cache_.empty(); }
  bool is_trimmable() const { return cache_.is_trimmable(); }
  int trim(int n) { return cache_.trim(n); }
  void reset() { cache_.reset(); }
  size_t nbytes() { return cache_.nbytes(); }
  size_t used_bytes() { return cache_.used_bytes(); }
  CacheStats peek() const { return cache_.peek(); }
  std::vector<std::byte> state() { return cache_.state(); }
  void set_state(std::span<const std::byte> bytes) { cache_.set_state(bytes); }

  /// A statistic of the original system by its name there, after the pending call is settled. Throws
  /// UnsupportedOperation naming those that the method has.
  double telemetry(std::string_view name);

  const KVCacheConfig& config() const { return config_; }
  /// What runs it, for everything else: batch rows, threads, copies.
  KVCache& engine() { return cache_; }

 protected:
  /// For the classes that belong to one method: refuses a configuration of another one.
  LayerCache(const KVCacheConfig& config, int layer_id, std::string_view cache_class);
  size_t bytes(std::string_view name) { return static_cast<size_t>(telemetry(name)); }
  int64_t count(std::string_view name) { return static_cast<int64_t>(telemetry(name)); }

 private:
  void take_heads(const Tensor& k, const Tensor& v);

  KVCacheConfig config_;
  bool shape_given_ = false;
  KVCache cache_;
};

/// The method of a configuration that has to belong to a class; throws QuantizerConfigError otherwise.
MethodSpec vector_method(const KVCacheConfig& config, std::string_view cache_class);

// The classes of the original system whose methods can be built. Properties settle the pending call.

/// SnapKV (arXiv:2404.14469).
class SnapKVKVCache : public LayerCache {
 public:
  explicit SnapKVKVCache(const KVCacheConfig& config) : LayerCache(config, 0, "SnapKVKVCache") {}
  size_t evicted_key_bytes() { return bytes("evicted_key_bytes"); }      ///< of the rows that are kept
  size_t evicted_value_bytes() { return bytes("evicted_value_bytes"); }  ///< likewise
  size_t full_key_bytes() { return bytes("full_key_bytes"); }
  size_t full_value_bytes() { return bytes("full_value_bytes"); }
  int64_t tokens_kept() { return count("tokens_kept"); }
  int64_t tokens_total() { return count("tokens_total"); }
  double eviction_ratio() { return telemetry("eviction_ratio"); }
  double keep_rate() { return telemetry("keep_rate"); }
};

/// StreamingLLM (arXiv:2309.17453).
class StreamingLLMKVCache : public LayerCache {
 public:
  explicit StreamingLLMKVCache(const KVCacheConfig& config) : LayerCache(config, 0, "StreamingLLMKVCache") {}
  size_t stream_kept_bytes() { return bytes("stream_kept_bytes"); }
  size_t full_seq_bytes() { return bytes("full_seq_bytes"); }
  double streaming_ratio() { return telemetry("streaming_ratio"); }
  int64_t tokens_seen() { return count("tokens_seen"); }
  int64_t tokens_in_window() { return count("tokens_in_window"); }
  int64_t tokens_kept() { return count("tokens_kept"); }
};

/// H2O (arXiv:2306.14048).
class H2OKVCache : public LayerCache {
 public:
  explicit H2OKVCache(const KVCacheConfig& config) : LayerCache(config, 0, "H2OKVCache") {}
  size_t h2o_kept_bytes() { return bytes("h2o_kept_bytes"); }
  size_t full_seq_bytes() { return bytes("full_seq_bytes"); }
  double compression_ratio() { return telemetry("compression_ratio"); }
  int64_t tokens_seen() { return count("tokens_seen"); }
  int64_t tokens_kept() { return count("tokens_kept"); }
};

/// TOVA (arXiv:2401.06104).
class TOVAKVCache : public LayerCache {
 public:
  explicit TOVAKVCache(const KVCacheConfig& config) : LayerCache(config, 0, "TOVAKVCache") {}
  size_t tova_kept_bytes() { return bytes("tova_kept_bytes"); }
  size_t full_seq_bytes() { return bytes("full_seq_bytes"); }
  double compression_ratio() { return telemetry("compression_ratio"); }
  int64_t tokens_seen() { return count("tokens_seen"); }
  int64_t tokens_kept() { return count("tokens_kept"); }
};

/// TurboQuant (arXiv:2504.19874), turboquant_mse and turboquant_prod.
class TurboQuantKVCache : public VectorCache {
 public:
  explicit TurboQuantKVCache(const KVCacheConfig& config)
      : VectorCache(vector_method(config, "TurboQuantKVCache"), static_cast<int>(config.head_dim.get())) {}
};

/// QJL (arXiv:2406.03482).
class QJLKVCache : public VectorCache {
 public:
  explicit QJLKVCache(const KVCacheConfig& config)
      : VectorCache(vector_method(config, "QJLKVCache"), static_cast<int>(config.head_dim.get())) {}
};

}  // namespace veloxquant
