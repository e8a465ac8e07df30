// turboquant_prod - "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate", arXiv:2504.19874, the
// variant of unbiased inner products.
//
//   keys: turboquant_mse of b - 1 bits, then the signs of m random projections of what it leaves over, in the rotated
//   frame; <q, k> is estimated by <R q, u^> + kappa * rho * sum of sign_i <s_i, R q>, rho the length of the rest
//   b = 1: signs alone, as in qjl
//
// bytes per token and kv head: keys ceil(dim_k * (b - 1) / 8) + ceil(m / 8) + 4, in two streams those of n_o and of
// dim_k - n_o channels; values dim_v + 2, or ceil(dim_v * b / 8) + 2.
//
// From 2 bits on, turboquant_mse(norm_mode=unbiased) is unbiased as well and has a fourth of the variance; orthogonal
// directions take away most of the difference.
#include "methods/vector_cache.h"

namespace veloxquant {
namespace {

std::vector<OptionSpec> make_options() {
  return vector_cache::joined(
      {
          integer_option("bit_width_inlier", "bits", 2, 1, 8, "bits of a coordinate: one is a sign, the others a code"),
          integer_option("bit_width_outlier", "outlier_bits", 2, 1, 8,
                         "the same of an outlier channel; none: those of the others")
              .none_by_default(),
          vector_cache::jl_dim_option("projections, at most the head size; none: as many as channels"),
          choice_option("sketch", "", {"gaussian", "orthogonal"},
                        "directions of the projections: of the paper, or orthogonal with a third of their variance"),
          vector_cache::rotation_option(),
          vector_cache::value_codec_option(),
      },
      {vector_cache::outlier_options("code outlier channels apart"), vector_cache::kernel_options()});
}

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  vector_cache::read_kernel_options(options);
  return vector_cache::check(options, shape, 1);
}

Recipe build(const Options& options, const BuildContext& context) {
  const int bits = options.integer("bit_width_inlier"), outliers = vector_cache::outliers(options);
  ResidualSketch row{.dim = context.shape.dim_k - outliers,
                     .bits = bits,
                     .sketch_rows = vector_cache::value_or(options, "jl_dim", 0),
                     .kind = options.choice("sketch") == "gaussian" ? SketchRows::gaussian : SketchRows::orthogonal,
                     .rotation = vector_cache::rotation(options),
                     .seed = context.seed,
                     .stream = vector_cache::kKeyStream,
                     .role = context.role(Side::key)};
  const auto key = residual_sketch(row);
  row.dim = outliers;
  row.bits = vector_cache::value_or(options, "bit_width_outlier", bits);
  row.sketch_rows = 0;
  row.stream = vector_cache::kOutlierStream;
  return vector_cache::recipe(options, context, key, outliers == 0 ? nullptr : residual_sketch(row),
                              {.bits = bits, .rotation = row.rotation});
}

}  // namespace

extern const MethodDef method_turboquant_prod = {
    .name = "turboquant_prod",
    .family = "quantization",
    .title = "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate",
    .paper = "2504.19874",
    .summary = "keys rotated and quantised, with a sign sketch of the rest that makes logits unbiased; single vectors",
    .options = make_options(),
    .capabilities = {},
    .telemetry = vector_cache::telemetry(),
    .check = check,
    .build = build,
    .cache_class = "TurboQuantKVCache",
    .standalone = true,
};

}  // namespace veloxquant
