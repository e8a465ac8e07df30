// PolarQuant (arXiv:2502.02617): after a random rotation, pairs of coordinates become radius and angle, pairs of radii
// again, and so on; angles at each level have one known density and are coded by its table.
//
// bytes per key: (b + 2) / 2 + b / 4 + b / 8 + ... bits a channel and a few radii; values dim_v + 2
#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("bit_width_inlier", "bits", 2, 1, 6, "bits of an angle; the first level has two more"),
    integer_option("polar_levels", "levels", 4, 1, 7, "levels of the transform"),
    choice_option("rotation", "", {"haar", "rht"}, "the random rotation"),
    choice_option("codebook", "", {"analytic", "online"}, "tables of angles: of the density, or of the first keys"),
    choice_option("value_codec", "", {"int8", "polar"}, "how values are stored"),
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  rules.that(shape.dim_k % 2 == 0, "head_dim", shape.dim_k, "even numbers");
  return rules.broken();
}

}  // namespace

extern const MethodDef method_polar = {
    .name = "polar",
    .family = "quantization",
    .title = "PolarQuant: Quantizing KV Caches with Polar Transformation",
    .paper = "2502.02617",
    .summary = "rotated rows as a radius and angles in codes",
    .options = kOptions,
    .capabilities = {},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "PolarQuantKVCache",
    .standalone = true,
};

}  // namespace veloxquant
