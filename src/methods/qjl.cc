// qjl - "QJL: 1-Bit Quantized JL Transform for KV Cache Quantization with Zero Overhead", arXiv:2406.03482.
//
//   keys: signs of m random projections and the norm n; <q, k> is estimated by kappa * n * sum of sign_i <s_i, q>,
//   kappa = sqrt(pi / 2) / m, or 1 / (m c_D) with orthogonal directions of length sqrt(D)
//   two streams: n_o outlier channels have m_o = max(64, 16 n_o) projections of their own
//
// bytes per token and kv head: keys ceil(m / 8) + 2, in two streams m_o / 8 + 2 more; values dim_v + 2, or
// ceil(dim_v / 4) + 2.
#include <algorithm>

#include "methods/vector_cache.h"

namespace veloxquant {
namespace {

constexpr int kMostSketch = 16;  // projections a channel
constexpr int kValueBits = 2;    // of value_codec = turboquant

std::vector<OptionSpec> make_options() {
  return vector_cache::joined(
      {
          vector_cache::jl_dim_option(
              "projections, at most 16 times the head size; none: as many as channels, which is "
              "noisy: 4 times as many give half the error of a logit"),
          choice_option(
              "sketch", "", {"orthogonal", "gaussian"},
              "directions of the projections: orthogonal, as in practice, or independent, as in the theorems"),
          vector_cache::value_codec_option(),
      },
      {vector_cache::outlier_options("sketch outlier channels apart")});
}

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  return vector_cache::check(options, shape, kMostSketch);
}

Recipe build(const Options& options, const BuildContext& context) {
  SignSketch row{.dim = context.shape.dim_k,  // the other channels in their places: rows stay those of all channels
                 .rows = vector_cache::value_or(options, "jl_dim", 0),
                 .kind = options.choice("sketch") == "gaussian" ? SketchRows::gaussian : SketchRows::orthogonal,
                 .seed = context.seed,
                 .stream = vector_cache::kKeyStream,
                 .role = context.role(Side::key)};
  const auto key = sign_sketch(row);
  const int outliers = vector_cache::outliers(options);
  row.dim = outliers;
  row.rows = std::max(64, 16 * outliers);
  row.stream = vector_cache::kOutlierStream;
  return vector_cache::recipe(options, context, key, outliers == 0 ? nullptr : sign_sketch(row),
                              {.bits = kValueBits, .rotation = Rotation::haar});
}

}  // namespace

extern const MethodDef method_qjl = {
    .name = "qjl",
    .family = "quantization",
    .title = "QJL: 1-Bit Quantized JL Transform for KV Cache Quantization with Zero Overhead",
    .paper = "2406.03482",
    .summary = "keys as signs of random projections and a norm, values int8; single vectors",
    .options = make_options(),
    .capabilities = {},
    .telemetry = vector_cache::telemetry(),
    .check = check,
    .build = build,
    .cache_class = "QJLKVCache",
    .standalone = true,
};

}  // namespace veloxquant
