#include "veloxquant/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "methods/method_registry.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

void add_not_there_yet(const KVCacheConfig& config, std::vector<std::string>& problems) {
  const MethodDef* def = find_method(config.method.get());
  if (def != nullptr && !def->build) problems.push_back(not_there_yet(*def));
}

}  // namespace

const std::vector<std::string>& standalone_methods() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> found;
    for (const MethodDef* def : method_table()) {
      if (def->standalone) found.emplace_back(def->name);
    }
    return found;
  }();
  return names;
}

bool is_standalone(std::string_view method) { return std::ranges::binary_search(standalone_methods(), method); }

AnyCache KVCacheFactory::create(const KVCacheConfig& config) {
  std::vector<std::string> problems = config.problems();
  add_not_there_yet(config, problems);
  if (!problems.empty()) throw QuantizerConfigError(std::move(problems));
  if (!is_standalone(config.method.get())) return LayerCache(config);
  VectorCache cache(method_spec(config), static_cast<int>(config.head_dim.get()));
  if (!config.sliding_window->has_value()) return cache;
  return SlidingWindowKVCache(std::move(cache), static_cast<int>(**config.sliding_window));
}

KVCacheBuilder& KVCacheBuilder::with_method(std::string method) {
  config_.method = std::move(method);
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_head_dim(int64_t d) {
  config_.head_dim = d;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_bit_width(int64_t inlier, std::optional<int64_t> outlier) {
  config_.bit_width_inlier = inlier;
  config_.bit_width_outlier = outlier;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_bit_width(IntegerList inlier, std::optional<int64_t> outlier) {
  config_.bit_width_inlier = std::move(inlier);
  config_.bit_width_outlier = outlier;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_jl_dim(int64_t m) {
  config_.jl_dim = m;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_n_outlier_channels(int64_t n) {
  config_.n_outlier_channels = n;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_n_calib_tokens(int64_t n) {
  config_.n_calib_tokens = n;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_vectorized_attend(bool enabled) {
  config_.enable_vectorized_attend = enabled;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_outlier_two_stream(bool enabled) {
  config_.enable_outlier_two_stream = enabled;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_fused_query_dot(bool enabled) {
  config_.enable_fused_query_dot = enabled;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_seed(int64_t seed) {
  config_.seed = seed;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_precision(DType dtype) {
  config_.dtype = std::string(to_string(dtype));
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_capacity(int64_t max_tokens) {
  config_.capacity = max_tokens;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_artifact_store(std::shared_ptr<ArtifactStore> store) {
  null_store_ = store == nullptr;
  config_.store = std::move(store);
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_observer(std::shared_ptr<QuantizationObserver> observer) {
  auto observers = config_.observers.get();
  observers.push_back(std::move(observer));
  config_.observers = std::move(observers);
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_sliding_window(int64_t window_size) {
  config_.sliding_window = window_size;
  return *this;
}
KVCacheBuilder& KVCacheBuilder::with_options(MethodOptions options) {
  config_.options = std::move(options);
  return *this;
}

std::vector<std::string> KVCacheBuilder::problems() const {
  std::vector<std::string> found = config_.problems();
  const int64_t dim = config_.head_dim.get();
  if (dim < 2 || !std::has_single_bit(static_cast<uint64_t>(dim))) {
    found.push_back(
        fmt::format("head_dim: got {}, allowed powers of two from 2 on; KVCacheFactory::create takes any", dim));
  }
  const int64_t most = config_.method.get() == "qjl" ? 16 * dim : dim;
  // What methods that read these fields have said is not said again.
  const auto said = [&found](std::string_view name) {
    return std::ranges::any_of(found, [&](const std::string& line) { return line.find(name) != std::string::npos; });
  };
  if (const auto m = config_.jl_dim.get(); m && *m > most && !said("jl_dim")) {
    found.push_back(fmt::format("jl_dim: got {}, allowed 1..{} with head_dim {}", *m, most, dim));
  }
  if (const auto n = config_.n_outlier_channels.get(); n && *n >= dim && !said("n_outlier_channels")) {
    found.push_back(fmt::format("n_outlier_channels: got {}, allowed 0..{} with head_dim {}", *n, dim - 1, dim));
  }
  if (null_store_) found.push_back("store: got null, allowed an ArtifactStore");
  add_not_there_yet(config_, found);
  return found;
}

AnyCache KVCacheBuilder::build() const {
  std::vector<std::string> found = problems();
  if (!found.empty()) throw QuantizerConfigError(std::move(found));
  return KVCacheFactory::create(config_);
}

}  // namespace veloxquant
