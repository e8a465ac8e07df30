#include "veloxquant/layer_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

LayerShape shape_of(const KVCacheConfig& config, int layer_id) {
  const auto dim = static_cast<int>(config.head_dim.get());
  return {.dim_k = dim, .dim_v = dim, .layer = layer_id};
}

// An empty class: any.
MethodSpec method_of_class(const KVCacheConfig& config, std::string_view cache_class) {
  MethodSpec spec = method_spec(config);
  if (cache_class.empty() || spec.def->cache_class == cache_class) return spec;
  std::vector<std::string> methods;
  for (const MethodDef* def : method_table()) {
    if (def->cache_class == cache_class) methods.emplace_back(def->name);
  }
  throw QuantizerConfigError(
      fmt::format("method: got {}, allowed {} for {}", spec.def->name, listed(methods), cache_class));
}

MethodSpec layer_method(const KVCacheConfig& config, std::string_view cache_class) {
  MethodSpec spec = method_of_class(config, cache_class);
  if (spec.def->standalone) {
    throw QuantizerConfigError(
        fmt::format("method: {} stores single vectors: its cache is {}", spec.def->name, spec.def->cache_class));
  }
  return spec;
}

}  // namespace

MethodSpec vector_method(const KVCacheConfig& config, std::string_view cache_class) {
  MethodSpec spec = method_of_class(config, cache_class);
  if (config.sliding_window->has_value()) {
    throw QuantizerConfigError(fmt::format("sliding_window: got {}, allowed none for {}: KVCacheFactory wraps it",
                                           **config.sliding_window, cache_class));
  }
  return spec;
}

LayerCache::LayerCache(const KVCacheConfig& config, int layer_id, std::string_view cache_class)
    : config_(config), cache_(layer_method(config, cache_class), shape_of(config, layer_id)) {}

LayerCache::LayerCache(const KVCacheConfig& config, int layer_id) : LayerCache(config, layer_id, {}) {}

LayerCache::LayerCache(const KVCacheConfig& config, const LayerShape& shape)
    : config_(config), shape_given_(true), cache_(layer_method(config, {}), shape) {}

// Tensors that can't be a first call are left to the engine, which says why.
void LayerCache::take_heads(const Tensor& k, const Tensor& v) {
  const LayerShape& now = cache_.shape();
  if (shape_given_ || cache_.batch() > 0 || k.heads < 1 || k.dim != now.dim_k || v.dim < 1 || v.heads != k.heads)
    return;
  if (k.heads == now.kv_heads && v.dim == now.dim_v && k.dtype == now.input) return;
  LayerShape shape = now;
  shape.kv_heads = k.heads;
  shape.q_heads = 0;
  shape.dim_v = v.dim;
  shape.input = k.dtype;
  cache_ = KVCache(cache_.method(), shape);
}

KVCache::Fetched LayerCache::update_and_fetch(const Tensor& k, const Tensor& v, const CallInfo& info) {
  take_heads(k, v);
  return cache_.update_and_fetch(k, v, info);
}

KVCache::Fetched LayerCache::update_and_fetch(const Tensor& k, const Tensor& v, const AttendIn& queries,
                                              const CallInfo& info) {
  take_heads(k, v);
  return cache_.update_and_fetch(k, v, queries, info);
}

std::vector<float> LayerCache::step(const AttendIn& in, const Tensor& k, const Tensor& v, const CallInfo& info) {
  take_heads(k, v);
  return cache_.step(in, k, v, info);
}

double LayerCache::telemetry(std::string_view name) {
  cache_.commit();
  const MethodDef& def = *cache_.method().def;
  const auto it = std::ranges::find_if(def.telemetry, [&](const Telemetry& entry) { return entry.name == name; });
  if (it != def.telemetry.end()) return it->value(cache_.peek());
  std::vector<std::string> names;
  for (const Telemetry& entry : def.telemetry) names.emplace_back(entry.name);
  throw UnsupportedOperation(fmt::format("{} has no {}; it has {}", def.name, quote(name), listed(names)));
}

}  // namespace veloxquant
