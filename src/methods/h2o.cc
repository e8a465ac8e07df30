// H2O (arXiv:2306.14048): keeps the rows that gathered the most attention, and the newest.
//
// After each call, per kv head: s = decay^S * s + sum over the call's queries i of decay^(S - 1 - i) * their attention
// weight; then all but the `budget` best go, sinks and the newest `grace` rows apart.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8
#include <fmt/format.h>

#include "methods/eviction.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("h2o_budget", "budget", 512, 0, 1 << 30, "rows kept per kv head, sinks and grace included"),
    integer_option("h2o_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    real_option("h2o_rope_base", "", 10000.0, 0, 1e30, "accepted and unused: rows keep the positions they came with")
        .above_min(),
    integer_option("h2o_grace", "grace", 16, 0, 1 << 30, "newest rows, never dropped"),
    real_option("h2o_decay", "decay", 0.98, 0, 1, "what scores are multiplied with at each token; 1: plain sums")
        .above_min(),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  (void)options.real("h2o_rope_base");
  const int budget = options.integer("h2o_budget"), sinks = options.integer("h2o_n_sink");
  const int grace = options.integer("h2o_grace");
  if ((sinks == 0 && grace == 0) || int64_t{sinks} + grace < budget) return {};
  return {fmt::format("h2o_budget: got {}, allowed more than h2o_n_sink {} + h2o_grace {}", budget, sinks, grace)};
}

Recipe build(const Options& options, const BuildContext& context) {
  Recipe recipe = eviction::exact_rows(context);
  recipe.query_source = eviction::query_source(options);
  recipe.retention = topk({.name = "h2o",
                           .budget = options.integer("h2o_budget"),
                           .n_sink = options.integer("h2o_n_sink"),
                           .recent = options.integer("h2o_grace"),
                           .scorer = attention_sum(options.real("h2o_decay"))});
  return recipe;
}

}  // namespace

extern const MethodDef method_h2o = {
    .name = "h2o",
    .family = "eviction",
    .title = "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
    .paper = "2306.14048",
    .summary = "keeps the rows with the most attention so far, and the newest",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("h2o_kept_bytes"),
    .check = check,
    .build = build,
    .chooses_rows = true,
    .cache_class = "H2OKVCache",
    .options_struct = "H2OOptions",
};

}  // namespace veloxquant
