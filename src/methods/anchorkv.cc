// AnchorKV (arXiv:2608.02901): after the prompt a few rows become anchors; every other row is a multiple of its nearest
// anchor, and what is left over is coded for those rows where it lowers the error most, within a budget of bytes.
//
// bytes: anchors exact, an index and a factor a row and side, coded rests up to theta of the fp16 bytes
#include <fmt/format.h>

#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    real_option("anchorkv_theta", "theta", 0.05, 0, 1, "bytes of the compressed part over fp16 bytes").above_min(),
    integer_option("anchorkv_window", "window", 32, 1, 1 << 30,
                   "newest rows that are anchors, and queries that choose"),
    real_option("anchorkv_rho", "rho", 0.7, 0, 1, "share of anchors chosen by attention, the others at random"),
    real_option("anchorkv_anchor_frac", "anchors", 0.0078125, 0, 1, "anchors per token").above_min(),
    integer_option("anchorkv_residual_bits", "bits", 2, 1, 4, "bits of a coordinate of a coded rest"),
    integer_option("anchorkv_seed", "", 42, -0x1p63, 0x1p63, "of random anchors and signs"),
    integer_option("recompress_every", "", 0, 0, 1 << 30, "tokens after which the tail is compressed too; 0: never"),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  const int64_t every = options.integer64("recompress_every"), window = options.integer64("anchorkv_window");
  rules.that(every == 0 || every >= 2 * window, "recompress_every",
             fmt::format("0 or at least {}: twice anchorkv_window", 2 * window));
  return rules.broken();
}

}  // namespace

extern const MethodDef method_anchorkv = {
    .name = "anchorkv",
    .family = "quantization",
    .title = "AnchorKV: Anchor-Residual KV Cache Compression",
    .paper = "2608.02901",
    .summary = "a few rows exact, the others as a multiple of one of them and a coded rest where it pays",
    .options = kOptions,
    .capabilities = {.trimmable = false, .chunk_invariant = false},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "AnchorKVKVCache",
    .options_struct = "AnchorKVOptions",
};

}  // namespace veloxquant
