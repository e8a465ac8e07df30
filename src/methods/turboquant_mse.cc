// turboquant_mse - "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate", arXiv:2504.19874, the
// variant of least squared error.
//
//   k = gamma * u, u = rotated unit row; every coordinate of sqrt(D) * u has one known density
//   code = number of Lloyd-Max boundaries below it, k^ = gamma / sqrt(D) * R^T level(code)
//   two streams: n_o outlier channels and the others, each with rotation, norm and table of their own
//
// bytes per token and kv head: keys ceil(dim_k * b / 8) + 2, in two streams ceil(n_o * b_o / 8) + ceil((dim_k - n_o) *
// b / 8) + 4; values dim_v + 2, or ceil(dim_v * b / 8) + 2.
#include "methods/vector_cache.h"

namespace veloxquant {
namespace {

std::vector<OptionSpec> make_options() {
  return vector_cache::joined(
      {
          integer_option("bit_width_inlier", "bits", 2, 1, 8, "bits of a code"),
          integer_option("bit_width_outlier", "outlier_bits", 2, 1, 8,
                         "bits of a code of an outlier channel; none: those of the others")
              .none_by_default(),
          vector_cache::jl_dim_option("accepted up to the head size; this variant has no sketch"),
          vector_cache::rotation_option(),
          choice_option("norm_mode", "norm", {"paper", "unbiased", "lsq"},
                        "stored length of a row: its norm, that of unbiased logits, that of least squares"),
          vector_cache::value_codec_option(),
      },
      {vector_cache::outlier_options("code outlier channels apart"), vector_cache::kernel_options()});
}

NormMode norm_mode(const Options& options) {
  const std::string& name = options.choice("norm_mode");
  return name == "lsq" ? NormMode::lsq : name == "unbiased" ? NormMode::unbiased : NormMode::paper;
}

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  vector_cache::read_kernel_options(options);
  return vector_cache::check(options, shape, 1);
}

Recipe build(const Options& options, const BuildContext& context) {
  const int bits = options.integer("bit_width_inlier"), outliers = vector_cache::outliers(options);
  LloydRow row{.dim = context.shape.dim_k - outliers,
               .bits = bits,
               .norm = norm_mode(options),
               .rotation = vector_cache::rotation(options),
               .seed = context.seed,
               .stream = vector_cache::kKeyStream,
               .role = context.role(Side::key)};
  const auto key = lloyd_row(row);
  row.dim = outliers;
  row.bits = vector_cache::value_or(options, "bit_width_outlier", bits);
  row.stream = vector_cache::kOutlierStream;
  const auto outlier = outliers == 0 ? nullptr : lloyd_row(row);
  row.bits = bits;
  return vector_cache::recipe(options, context, key, outlier, row);
}

}  // namespace

extern const MethodDef method_turboquant_mse = {
    .name = "turboquant_mse",
    .family = "quantization",
    .title = "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate",
    .paper = "2504.19874",
    .summary = "keys rotated and quantised with one fixed table, values int8; single vectors",
    .options = make_options(),
    .capabilities = {},
    .telemetry = vector_cache::telemetry(),
    .check = check,
    .build = build,
    .cache_class = "TurboQuantKVCache",
    .standalone = true,
};

}  // namespace veloxquant
