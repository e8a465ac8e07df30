#include "veloxquant/vector_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

/// The engine refuses what is over its capacity; here the oldest pair makes room.
MethodSpec without_capacity(MethodSpec method) {
  if (method.options.has_value("capacity")) method.options.set("capacity", OptionValue());
  return method;
}

int capacity_of(const MethodSpec& method) {
  return method.options.has_value("capacity") ? method.options.integer("capacity") : 0;
}

LayerShape one_head(int head_dim) { return {.dim_k = head_dim, .dim_v = head_dim}; }

}  // namespace

VectorCache::VectorCache(const MethodSpec& method, int head_dim)
    : capacity_(capacity_of(method)), learns_(false), cache_(without_capacity(method), one_head(head_dim)) {
  learns_ = cache_.learns_from_rows();
  if (!cache_.can_pop_front()) {
    throw QuantizerConfigError(fmt::format("method: {} does not store single vectors", method.def->name));
  }
}

void VectorCache::check(std::span<const float> x, std::string_view name, float largest) const {
  if (x.size() != static_cast<size_t>(head_dim())) {
    throw ShapeError(fmt::format("{}: got {} numbers, allowed {}", name, x.size(), head_dim()));
  }
  const auto bad = std::ranges::find_if(x, [&](float v) { return !(std::fabs(v) <= largest); });
  if (bad != x.end()) {
    throw ValueError(
        fmt::format("{}: got {} at {}, allowed magnitudes up to {}", name, *bad, bad - x.begin(), largest));
  }
}

void VectorCache::append_key(std::span<const float> k) {
  check(k, "key", cache_.largest_magnitude());
  if (waiting_) throw UnsupportedOperation("append_key: a key waits for its value already");
  waiting_.emplace(k.begin(), k.end());
}

void VectorCache::append_value(std::span<const float> v) {
  check_value(v);
  append_pair(*waiting_, v);
  waiting_.reset();
}

void VectorCache::check_value(std::span<const float> v) const {
  check(v, "value", cache_.largest_magnitude());
  if (!waiting_) throw UnsupportedOperation("append_value: no key waits for it");
}

void VectorCache::append_pair(std::span<const float> k, std::span<const float> v) {
  if (capacity_ > 0 && cache_.size() == capacity_) cache_.pop_front(1);
  cache_.append(Tensor::bshd(k.data(), DType::f32, 1, 1, 1, head_dim()),
                Tensor::bshd(v.data(), DType::f32, 1, 1, 1, head_dim()));
  cache_.commit();  // no query sees the pair as it came
}

std::vector<float> VectorCache::attend(std::span<const float> q) {
  check(q, "query", std::numeric_limits<float>::max());
  if (waiting_) throw UnsupportedOperation("attend: a key waits for its value");
  if (size() == 0) return std::vector<float>(q.size(), 0.0f);
  return cache_.attend({.q = Tensor::bshd(q.data(), DType::f32, 1, 1, 1, head_dim())});
}

size_t VectorCache::memory_bytes() { return cache_.used_bytes(); }
size_t VectorCache::nbytes() { return cache_.nbytes(); }
int VectorCache::size() { return cache_.size(); }
void VectorCache::reset() {
  waiting_.reset();
  cache_.reset();
}
void VectorCache::pop_front(int n) { cache_.pop_front(n); }
std::vector<std::byte> VectorCache::state() { return cache_.state(); }
void VectorCache::set_state(std::span<const std::byte> bytes) {
  KVCache restored = cache_.copy();
  restored.set_state(bytes);
  if (restored.batch() > 1) {
    throw FormatError(fmt::format("state of {} batch rows, single vectors have one", restored.batch()));
  }
  if (capacity_ > 0) restored.pop_front(std::max(0, restored.size() - capacity_));
  cache_ = std::move(restored);
  waiting_.reset();
}

SlidingWindowKVCache::SlidingWindowKVCache(VectorCache inner, int window_size)
    : inner_(std::move(inner)), window_(window_size) {
  if (window_size < 1) {
    throw QuantizerConfigError(fmt::format("window_size: got {}, allowed 1 and more", window_size));
  }
  inner_.reset();
}

void SlidingWindowKVCache::append_value(std::span<const float> v) {
  if (!inner_.learns_from_pairs()) {
    inner_.append_value(v);
    inner_.pop_front(std::max(0, inner_.size() - window_));
    return;
  }
  inner_.check_value(v);
  ring_.emplace_back(std::move(*inner_.waiting_), std::vector<float>(v.begin(), v.end()));
  inner_.waiting_.reset();
  stale_ |= static_cast<int>(ring_.size()) > window_;
  if (static_cast<int>(ring_.size()) > window_) ring_.pop_front();
  if (!stale_) inner_.append_pair(ring_.back().first, ring_.back().second);
}

void SlidingWindowKVCache::refill() {
  if (!stale_) return;
  inner_.cache_.reset();
  for (const auto& [k, v] : ring_) inner_.append_pair(k, v);
  stale_ = false;
}

int SlidingWindowKVCache::size() {
  if (!stale_) return inner_.size();
  const auto pairs = static_cast<int>(ring_.size());
  return inner_.capacity() > 0 ? std::min(pairs, inner_.capacity()) : pairs;
}

std::vector<float> SlidingWindowKVCache::attend(std::span<const float> q) {
  refill();
  return inner_.attend(q);
}

size_t SlidingWindowKVCache::memory_bytes() {
  refill();
  return inner_.memory_bytes();
}

size_t SlidingWindowKVCache::total_bytes() {
  return memory_bytes() + ring_.size() * 2 * static_cast<size_t>(inner_.head_dim()) * sizeof(float);
}

void SlidingWindowKVCache::reset() {
  inner_.reset();
  ring_.clear();
  stale_ = false;
}

VectorCache& SlidingWindowKVCache::inner() {
  refill();
  return inner_;
}

}  // namespace veloxquant
