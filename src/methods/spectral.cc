// SpectralQuant (preprint of 2026): in the eigenbasis of keys a few coordinates carry the signal; they and the rest get
// tables of their own, and a sketch may correct the signal's inner products.
//
// bytes per pair: dim * b / 8 + 4 for keys (and ceil(m / 8) + 2 with the sketch), dim * b / 8 + 4 for values
#include <fmt/format.h>

#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("bit_width_inlier", "bits", 2, 1, 8, "bits of a code"),
    integer_option("spectral_key_d_eff", "key_d_eff", 4, 1, 65536,
                   "leading coordinates of keys where no calibration says"),
    integer_option("spectral_val_d_eff", "val_d_eff", 50, 1, 65536, "leading coordinates of values"),
    boolean_option("spectral_apply_qjl", "apply_qjl", true, "a sketch corrects inner products"),
    text_option("spectral_model_name", "model_name", "model", "key of stored bases; not empty, without / and \\"),
    choice_option("sketch", "", {"orthogonal", "gaussian"}, "rows of the sketch"),
    integers_option("spectral_bits", "", {2}, 0, 8, "bits of each coordinate of keys; none: bits for all")
        .none_by_default(),
    integers_option("spectral_value_bits", "", {2}, 0, 8, "bits of each coordinate of values; none: bits for all")
        .none_by_default(),
    integer_option("key_mse_bits", "", 1, 1, 8, "bits of a key code where the sketch has its own; none: bits")
        .none_by_default(),
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  rules.that(options.integer("spectral_key_d_eff") <= shape.dim_k, "spectral_key_d_eff",
             fmt::format("1..{} with this head_dim", shape.dim_k));
  rules.that(options.integer("spectral_val_d_eff") <= shape.dim_v, "spectral_val_d_eff",
             fmt::format("1..{} with this head_dim", shape.dim_v));
  const auto one_each = [&](std::string_view name, int dim) {
    if (!options.has_value(name)) return;
    rules.that(static_cast<int>(options.integers(name).size()) == dim, name,
               fmt::format("{} numbers, one for each coordinate", dim));
  };
  one_each("spectral_bits", shape.dim_k);
  one_each("spectral_value_bits", shape.dim_v);
  const std::string& model = options.text("spectral_model_name");
  rules.that(!model.empty() && model.find_first_of("/\\") == std::string::npos, "spectral_model_name",
             "names without / and \\, not empty");
  return rules.broken();
}

}  // namespace

extern const MethodDef method_spectral = {
    .name = "spectral",
    .family = "quantization",
    .title = "SpectralQuant: 3% Is All You Need",
    .paper = "",
    .summary = "few leading coefficients in an eigenbasis coded apart from the many others",
    .options = kOptions,
    .capabilities = {},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "SpectralQuantKVCache",
    .options_struct = "SpectralQuantOptions",
    .standalone = true,
};

}  // namespace veloxquant
