// TOVA (arXiv:2401.06104): the row that the current query attends to least goes.
//
// After each call the rows are ranked by the attention weights of its last query, a mean over all heads of the layer
// (tova_shared_heads) or of each kv head; nothing is remembered.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v), and 4 for its position, once where heads share their rows
#include <fmt/format.h>

#include "methods/eviction.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("tova_budget", "budget", 512, 0, 1 << 30, "rows kept, sinks included"),
    integer_option("tova_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    choice_option("tova_backend", "", {"auto", "mlx", "metal", "reference"}, "accepted; all give the same result"),
    boolean_option("tova_shared_heads", "shared_heads", true,
                   "one set of rows for all heads of a layer, else one per kv head"),
    integer_option("tova_recent", "recent", 0, 0, 1 << 30, "newest rows, never dropped; 0 as in the paper"),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  (void)options.choice("tova_backend");
  const int budget = options.integer("tova_budget"), sinks = options.integer("tova_n_sink");
  const int recent = options.integer("tova_recent");
  if ((sinks == 0 && recent == 0) || int64_t{sinks} + recent < budget) return {};
  return {fmt::format("tova_budget: got {}, allowed more than tova_n_sink {} + tova_recent {}", budget, sinks, recent)};
}

Recipe build(const Options& options, const BuildContext& context) {
  Recipe recipe = eviction::exact_rows(context);
  recipe.query_source = eviction::query_source(options);
  recipe.retention = topk({.name = "tova",
                           .budget = options.integer("tova_budget"),
                           .n_sink = options.integer("tova_n_sink"),
                           .recent = options.integer("tova_recent"),
                           .shared_by_heads = options.boolean("tova_shared_heads"),
                           .scorer = attention_last()});
  return recipe;
}

}  // namespace

extern const MethodDef method_tova = {
    .name = "tova",
    .family = "eviction",
    .title = "Transformers are Multi-State RNNs",
    .paper = "2401.06104",
    .summary = "drops the rows that the last query attends to least",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("tova_kept_bytes"),
    .check = check,
    .build = build,
    .chooses_rows = true,
    .cache_class = "TOVAKVCache",
    .options_struct = "TOVAOptions",
};

}  // namespace veloxquant
