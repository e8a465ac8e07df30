// KVTC (arXiv:2511.01815): rows in their principal components, a dynamic programme spreads a budget of bits over them,
// codes are entropy-coded. Sinks and the newest rows stay exact.
//
// bytes per row, kv head and side: kvtc_bit_budget / 8 before entropy coding; the basis once
#include <fmt/format.h>

#include <algorithm>

#include "methods/fit_options.h"
#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("kvtc_bit_budget", "budget", 512, 0, 1 << 20, "code bits of a row, per kv head and side"),
    integers_option("kvtc_bit_choices", "choices", {0, 1, 2, 3, 4, 6, 8}, 0, 8, "widths that a component may have"),
    real_option("kvtc_beta", "beta", 3.5, 1, 1000000.0, "decay of the error with each bit").above_min(),
    integer_option("kvtc_n_sink", "n_sink", 4, 0, 1 << 30, "first rows that stay exact"),
    integer_option("kvtc_window", "window", 128, 0, 1 << 30, "newest rows that stay exact"),
    integer_option("kvtc_block", "block", 128, 32, 1 << 16, "rows sealed at once"),
    choice_option("kvtc_distortion", "distortion", {"beta", "table", "measured"},
                  "error of a width: by kvtc_beta, of a normal density, or of the rows at hand"),
    choice_option("kvtc_quantizer", "quantizer", {"lloyd_max", "group_minmax", "uniform_deadzone"},
                  "how a component is coded"),
    boolean_option("kvtc_entropy", "entropy", true, "codes are entropy-coded"),
    fit_min_option(),
    fit_rows_option(),
    fit_payoff_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  const IntegerList& choices = options.integers("kvtc_bit_choices");
  IntegerList sorted = choices;
  std::ranges::sort(sorted);
  rules.that(std::ranges::adjacent_find(sorted) == sorted.end(), "kvtc_bit_choices", "distinct widths");
  const int64_t least = sorted.front() * std::max(shape.dim_k, shape.dim_v);
  rules.that(least <= options.integer64("kvtc_bit_budget"), "kvtc_bit_budget",
             fmt::format("at least {}: the smallest of kvtc_bit_choices for each channel", least));
  rules.that(options.integer("kvtc_block") % 32 == 0, "kvtc_block", "multiples of 32");
  return rules.broken();
}

}  // namespace

extern const MethodDef method_kvtc = {
    .name = "kvtc",
    .family = "quantization",
    .title = "KV Cache Transform Coding for Compact Storage in LLM Inference",
    .paper = "2511.01815",
    .summary = "principal components with bits by their weight, entropy-coded",
    .options = kOptions,
    .capabilities = {.chunk_invariant = false},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "KVTCKVCache",
    .options_struct = "KVTCOptions",
};

}  // namespace veloxquant
