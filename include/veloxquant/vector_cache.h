// Caches of single vectors: one head, keys and values appended one by one, rows attended in their stored form at once.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "veloxquant/cache.h"

namespace veloxquant {

/// A facade over the cache of a layer with one batch row and one head. With the option `capacity` the oldest pair drops
/// when a pair is appended to a full cache. Vectors are fp32 and rounded to the option `dtype` first. Errors leave the
/// cache as it was.
class VectorCache {
 public:
  /// Throws QuantizerConfigError, for methods too that don't code each row by itself.
  VectorCache(const MethodSpec& method, int head_dim);

  /// Buffers a key of head_dim numbers till its value comes. Throws ShapeError, ValueError (NaN, infinity, a magnitude
  /// that the element type can't hold), or UnsupportedOperation where a key waits already.
  void append_key(std::span<const float> k);
  /// Stores the pair. Throws ShapeError, ValueError, or UnsupportedOperation where no key waits.
  void append_value(std::span<const float> v);
  /// softmax(K q / sqrt(head_dim))^T V over all stored pairs; zeros where there are none. Throws ShapeError,
  /// ValueError, or UnsupportedOperation while a key waits for its value.
  std::vector<float> attend(std::span<const float> q);

  size_t memory_bytes();  ///< of the stored pairs, by the method's formula
  size_t nbytes();        ///< of the allocator
  int size();             ///< pairs
  int head_dim() const { return cache_.shape().dim_k; }
  int capacity() const { return capacity_; }  ///< pairs; 0: no limit
  void reset();                               ///< pairs, the waiting key and what was learned from pairs go
  void pop_front(int n);                      ///< drops the oldest min(n, size) pairs
  /// Of the pairs; a waiting key is not part of it.
  std::vector<std::byte> state();
  /// Of more pairs than `capacity` the newest come. Throws FormatError and changes nothing.
  void set_state(std::span<const std::byte> bytes);
  /// Whether codes depend on the first pairs (outlier channels), so that dropping these would change a fresh cache's.
  bool learns_from_pairs() const { return learns_; }
  const MethodSpec& method() const { return cache_.method(); }

 private:
  friend class SlidingWindowKVCache;
  void append_pair(std::span<const float> k, std::span<const float> v);
  void check(std::span<const float> x, std::string_view name, float largest) const;
  void check_value(std::span<const float> v) const;

  int capacity_;
  bool learns_;
  KVCache cache_;
  std::optional<std::vector<float>> waiting_;
};

/// The newest `window_size` pairs: after every append attend equals that of a fresh inner cache that was fed these
/// pairs in order. An inner cache that learns nothing from its pairs drops its oldest; the others are fed anew from a
/// ring of raw pairs, once when they are read after an append.
class SlidingWindowKVCache {
 public:
  /// `inner` is emptied. Throws QuantizerConfigError for window_size < 1.
  SlidingWindowKVCache(VectorCache inner, int window_size);

  void append_key(std::span<const float> k) { inner_.append_key(k); }
  void append_value(std::span<const float> v);
  std::vector<float> attend(std::span<const float> q);
  size_t memory_bytes();  ///< of the inner cache
  size_t total_bytes();   ///< and of the ring
  int size();             ///< pairs: the window's, or the capacity of the inner cache where that is less
  int window_size() const { return window_; }
  void reset();
  VectorCache& inner();

 private:
  void refill();

  VectorCache inner_;
  int window_;
  bool stale_ = false;  // pairs of the ring are not all in the inner cache
  std::deque<std::pair<std::vector<float>, std::vector<float>>> ring_;  // where the inner cache learns
};

}  // namespace veloxquant
