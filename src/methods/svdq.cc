// SVDq (arXiv:2502.15304): keys of a prompt in the basis of their singular vectors; groups of components get 8, 4, 2, 1
// and 0 bits.
//
// bytes per token and kv head: the components at their bits and parameters of groups of tokens; the basis once; values
// exact
#include <fmt/format.h>

#include <algorithm>

#include "methods/fit_options.h"
#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("svdq_rank", "rank", 1, 1, 65536, "components; none: by energy").none_by_default(),
    real_option("svdq_energy_threshold", "energy", 0.95, 0, 1,
                "share of the sum of singular values that the rank covers")
        .above_min(),
    integers_option("svdq_bit_schedule", "schedule", {8, 4, 2, 1, 1, 0, 0, 0}, 0, 8,
                    "bits of each group of components, leading first"),
    integer_option("svdq_group_size", "group", 32, 1, 1024, "tokens that share zero and scale"),
    choice_option("scope", "", {"head", "layer"}, "whose rows share a basis"),
    choice_option("schedule_over", "", {"full", "rank"}, "what the groups of components divide"),
    choice_option("quantizer", "", {"group", "lloyd_max"}, "how a component is coded"),
    fit_min_option(),
    fit_rows_option(),
    fit_payoff_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  if (options.has_value("svdq_rank"))
    rules.that(options.integer("svdq_rank") <= shape.dim_k, "svdq_rank",
               fmt::format("1..{} with this head_dim", shape.dim_k));
  const IntegerList& schedule = options.integers("svdq_bit_schedule");
  rules.that(std::ranges::any_of(schedule, [](int64_t bits) { return bits > 0; }), "svdq_bit_schedule",
             "widths that are not all 0");
  // A zero in the schedule would cut the rank twice.
  const auto groups = static_cast<int64_t>(schedule.size());
  if (options.choice("schedule_over") == "rank" && options.has_value("svdq_rank") &&
      std::ranges::find(schedule, 0) != schedule.end()) {
    rules.that(options.integer64("svdq_rank") >= 4 * groups, "svdq_rank",
               fmt::format("at least {} where {} groups with a 0 divide it", 4 * groups, groups));
  }
  return rules.broken();
}

}  // namespace

extern const MethodDef method_svdq = {
    .name = "svdq",
    .family = "quantization",
    .title = "SVDq: 1.25-bit and 410x Key Cache Compression for LLM Attention",
    .paper = "2502.15304",
    .summary = "keys in their principal components, with bits that fall from the leading ones",
    .options = kOptions,
    .capabilities = {.chunk_invariant = false},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "SVDqKVCache",
    .options_struct = "SVDqOptions",
    .keys_only = true,
};

}  // namespace veloxquant
