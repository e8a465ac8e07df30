// PolarQuant (arXiv:2502.02617): after a random rotation, pairs of coordinates become radius and angle, pairs of radii
// again, and so on; angles at each level have one known density and are coded by its table.
//
// bytes per key: (b + 2) / 2 + b / 4 + b / 8 + ... bits a channel and a few radii; values dim_v + 2
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("bit_width_inlier", "bits", 2, 1, 6, "bits of an angle; the first level has two more"),
    integer_option("polar_levels", "levels", 4, 1, 7,
                   "levels of the transform; none: 4, or fewer that fit the channels")
        .none_by_default(),
    integers_option("polar_level_bits", "level_bits", {4, 2, 2, 2}, 1, 8,
                    "bits of an angle of each level; none: by bits")
        .none_by_default(),
    choice_option("rotation", "", {"haar", "rht"}, "the random rotation"),
    choice_option("codebook", "", {"analytic", "online"}, "tables of angles: of the density, or of the first keys"),
    choice_option("value_codec", "", {"int8", "polar"}, "how values are stored"),
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  const bool both_sides = options.choice("value_codec") == "polar";
  const int common = both_sides ? std::gcd(shape.dim_k, shape.dim_v) : shape.dim_k;
  rules.that(shape.dim_k % 2 == 0, "head_dim", shape.dim_k, "even numbers");
  if (both_sides) rules.that(shape.dim_v % 2 == 0, "dim_v", shape.dim_v, "even numbers with value_codec = polar");
  const int most = std::countr_zero(static_cast<unsigned>(common));
  int levels = std::min(most, 4);
  if (options.has_value("polar_levels")) {
    levels = options.integer("polar_levels");
    rules.that(levels <= most, "polar_levels", fmt::format("1..{}: {} channels halve so often", most, common));
  }
  if (options.has_value("polar_level_bits")) {
    rules.that(static_cast<int>(options.integers("polar_level_bits").size()) == levels, "polar_level_bits",
               fmt::format("{} numbers, one for each level", levels));
  }
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
