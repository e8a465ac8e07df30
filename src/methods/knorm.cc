// Key-norm eviction (arXiv:2406.11430): keys with a small L2 norm tend to receive much attention; those with the
// largest go.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8. With knorm_recent = 0 the kept rows do not depend on how
// tokens were cut into calls; about budget / 4 recent rows serve generation better.
#include <fmt/format.h>

#include "methods/eviction.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("knorm_budget", "budget", 512, 1, 1 << 30, "rows kept per kv head, sinks included"),
    integer_option("knorm_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    integer_option("knorm_recent", "recent", 0, 0, 1 << 30, "newest rows, never dropped; 0 as in the paper"),
    choice_option("knorm_keep", "", {"low", "high"}, "which end of the norms survives"),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  const int budget = options.integer("knorm_budget"), sinks = options.integer("knorm_n_sink");
  const int recent = options.integer("knorm_recent");
  if (int64_t{sinks} + recent < budget) return {};
  return {
      fmt::format("knorm_budget: got {}, allowed more than knorm_n_sink {} + knorm_recent {}", budget, sinks, recent)};
}

Recipe build(const Options& options, const BuildContext& context) {
  Recipe recipe = eviction::exact_rows(context);
  recipe.query_source = eviction::query_source(options);
  recipe.retention = topk({.name = "knorm",
                           .budget = options.integer("knorm_budget"),
                           .n_sink = options.integer("knorm_n_sink"),
                           .recent = options.integer("knorm_recent"),
                           .scorer = key_norm(options.choice("knorm_keep") == "low")});
  return recipe;
}

}  // namespace

extern const MethodDef method_knorm = {
    .name = "knorm",
    .family = "eviction",
    .title = "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression",
    .paper = "2406.11430",
    .summary = "keeps the rows whose keys have the smallest norms",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("knorm_kept_bytes"),
    .check = check,
    .build = build,
    .chooses_rows = true,
    .cache_class = "L2NormKVCache",
    .options_struct = "L2NormOptions",
};

}  // namespace veloxquant
