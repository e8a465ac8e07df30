// Palu (arXiv:2407.21118): the rows of a group of heads lie near a low-dimensional space; their coefficients in it are
// stored, the leading ones with more bits.
//
// bytes per row and group: rank coefficients at their bits, parameters of groups of tokens; the basis once
#include <fmt/format.h>

#include <algorithm>

#include "methods/fit_options.h"
#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("palu_rank", "rank", 1, 1, 65536, "coefficients per head; none: by energy").none_by_default(),
    real_option("palu_energy_threshold", "energy", 0.9, 0, 1,
                "share of the sum of singular values that the rank covers")
        .above_min(),
    integer_option("palu_n_head_groups", "head_groups", 4, 1, 65536,
                   "groups of heads; more than there are heads: one each"),
    integer_option("palu_hi_bit", "hi", 4, 1, 8, "bits of leading coefficients"),
    integer_option("palu_lo_bit", "lo", 2, 1, 8, "bits of the others"),
    real_option("palu_hi_fraction", "hi_fraction", 0.25, 0, 1, "share of leading coefficients"),
    integer_option("palu_group_size", "group", 32, 1, 1024, "tokens that share zero and scale"),
    boolean_option("palu_quantize_values", "", true, "false: coefficients of values in fp16"),
    choice_option("palu_layout", "layout", {"feature_concat", "token_stack"},
                  "how the rows of a group stand beside each other"),
    boolean_option("palu_hadamard", "hadamard", false, "a Hadamard transform inside a tier of bits"),
    integer_option("palu_rank_v", "rank_v", 1, 1, 65536, "coefficients of values; none: as keys").none_by_default(),
    boolean_option("palu_uniform_rank", "uniform_rank", false, "all groups take the smallest rank"),
    fit_min_option(),
    fit_rows_option(),
    fit_payoff_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  rules.ordered("palu_lo_bit", "palu_hi_bit");
  const auto at_most = [&](std::string_view name, int dim) {
    if (!options.has_value(name)) return;
    rules.that(options.integer(name) <= dim, name, fmt::format("1..{} with this head_dim", dim));
  };
  at_most("palu_rank", options.has_value("palu_rank_v") ? shape.dim_k : std::min(shape.dim_k, shape.dim_v));
  at_most("palu_rank_v", shape.dim_v);
  return rules.broken();
}

}  // namespace

extern const MethodDef method_palu = {
    .name = "palu",
    .family = "quantization",
    .title = "Palu: KV-Cache Compression with Low-Rank Projection",
    .paper = "2407.21118",
    .summary = "rows of groups of heads in a low-rank basis, its coefficients in codes",
    .options = kOptions,
    .capabilities = {.chunk_invariant = false},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "PALUKVCache",
    .options_struct = "PALUOptions",
};

}  // namespace veloxquant
