#include "veloxquant/model_desc.h"

#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

/// Collects what is wrong with one layer after another.
class Checker {
 public:
  explicit Checker(const ModelDesc& model) : model_(model) {}

  std::vector<std::string> run() {
    const size_t count = model_.layers.size();
    if (count < 1 || count > kMostLayers) {
      problems_.push_back(fmt::format("the model has {} layers, allowed: 1..{}", count, kMostLayers));
      return problems_;
    }
    for (index_ = 0; index_ < static_cast<int>(count); ++index_) {
      if (layer().has_attention()) check_attention();
    }
    return problems_;
  }

 private:
  const LayerDesc& layer() const { return model_.layers[static_cast<size_t>(index_)]; }

  template <class Given>
  void problem(std::string_view name, Given given, std::string_view allowed) {
    problems_.push_back(fmt::format("layer {}: {} is {}, allowed: {}", index_, name, given, allowed));
  }
  void in_range(std::string_view name, int given, int min, int max) {
    if (given < min || given > max) problem(name, given, fmt::format("{}..{}", min, max));
  }

  void check_attention() {
    const size_t before = problems_.size();
    in_range("n_kv_heads", layer().n_kv_heads, 1, kMostHeads);
    in_range("n_q_heads", layer().n_q_heads, 1, kMostHeads);
    in_range("dim_k", layer().dim_k, 1, kLargestHeadDim);
    in_range("dim_v", layer().dim_v, 1, kLargestHeadDim);
    if (layer().window < 0) problem("window", layer().window, "0 (all rows) or more");
    if (layer().chunk < 0) problem("chunk", layer().chunk, "0 (no chunks) or more");
    if (layer().shares_with < -1 || layer().shares_with >= index_) {
      problem("shares_with", layer().shares_with, fmt::format("-1 or an earlier layer, 0..{}", index_ - 1));
    }
    if (problems_.size() > before) return;  // what follows compares numbers that are in range
    check_heads();
    if (layer().rope) check_rope(*layer().rope);
    if (layer().shares_with >= 0) check_shared();
  }

  void check_heads() {
    if (layer().n_q_heads % layer().n_kv_heads != 0) {
      problem("n_q_heads", layer().n_q_heads, fmt::format("a multiple of n_kv_heads = {}", layer().n_kv_heads));
    }
    if (!layer().value_is_key_prefix) return;
    if (layer().n_kv_heads != 1) problem("n_kv_heads", layer().n_kv_heads, "1 where value_is_key_prefix");
    if (layer().dim_v > layer().dim_k) {
      problem("dim_v", layer().dim_v, fmt::format("1..dim_k = {} where value_is_key_prefix", layer().dim_k));
    }
  }

  void check_rope(const RopeSpec& rope) {
    const int dim = rope.rotary_dim;
    if (dim < 2 || dim > layer().dim_k || dim % 2 != 0) {
      return problem("rope.rotary_dim", dim, fmt::format("an even number in 2..dim_k = {}", layer().dim_k));
    }
    if (rope.frequencies.size() != static_cast<size_t>(dim) / 2) {
      return problem("the count of rope.frequencies", rope.frequencies.size(),
                     fmt::format("rotary_dim / 2 = {}", dim / 2));
    }
    for (const float frequency : rope.frequencies) {
      if (!std::isfinite(frequency)) return problem("one of rope.frequencies", frequency, "finite numbers");
    }
  }

  void check_shared() {
    const LayerDesc& source = model_.layers[static_cast<size_t>(layer().shares_with)];
    if (!source.owns_cache()) {
      return problem("shares_with", layer().shares_with, "a layer with keys and values of its own");
    }
    const auto geometry = [](const LayerDesc& l) {
      return std::tuple(l.dim_k, l.dim_v, l.value_is_key_prefix, l.n_kv_heads, l.n_q_heads, l.window, l.chunk);
    };
    if (geometry(layer()) != geometry(source)) {
      problem("shares_with", layer().shares_with, "a layer of the same dimensions, heads, window and chunk");
    }
  }

  const ModelDesc& model_;
  int index_ = 0;
  std::vector<std::string> problems_;
};

}  // namespace

void check(const ModelDesc& model) {
  std::vector<std::string> problems = Checker(model).run();
  if (!problems.empty()) throw QuantizerConfigError(std::move(problems));
}

std::vector<LayerShape> attention_shapes(const ModelDesc& model, DType input) {
  check(model);
  std::vector<LayerShape> shapes;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const LayerDesc& layer = model.layers[i];
    if (!layer.owns_cache()) continue;
    shapes.push_back({.kv_heads = layer.n_kv_heads,
                      .q_heads = layer.n_q_heads,
                      .dim_k = layer.dim_k,
                      .dim_v = layer.dim_v,
                      .layer = static_cast<int>(i),
                      .input = input,
                      .value_is_key_prefix = layer.value_is_key_prefix,
                      .rope = layer.rope ? &*layer.rope : nullptr});
  }
  return shapes;
}

}  // namespace veloxquant
