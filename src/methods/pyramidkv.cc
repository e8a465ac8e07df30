// PyramidKV (arXiv:2406.02069): attention funnels information into fewer rows layer by layer, so early layers get
// larger budgets than deep ones, at the same total.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8
#include "veloxquant/layer_budgets.h"
#include "methods/eviction.h"
#include "methods/rules.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("pyramid_budget", "budget", 512, 1, 1 << 30, "rows kept per kv head, in the mean over layers"),
    choice_option("pyramid_backend", "", {"reference", "mlx", "metal", "auto"}, "accepted; all give the same result"),
    integer_option("pyramid_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    real_option("pyramid_beta", "beta", 2.0, 1, 1000000.0, "steepness; 1: all layers alike"),
    integer_option("pyramid_resolved_budget", "", 1, 1, 1 << 30,
                   "rows of this layer, from for_model; none: pyramid_budget")
        .none_by_default(),
    choice_option("pyramid_schedule", "schedule", {"paper", "linear"}, "how budgets fall from layer to layer"),
    integer_option("pyramid_window", "window", 32, 1, 1 << 30, "queries that vote; also rows that stay"),
    integer_option("pyramid_kernel", "kernel", 5, 1, 1023, "positions whose scores are pooled, odd"),
    choice_option("pyramid_pool", "pool", {"max", "avg", "none"}, "how neighbouring scores are pooled"),
    choice_option("pyramid_select", "select", {"window", "mass"}, "what chooses rows of the prompt"),
    choice_option("pyramid_decode", "decode", {"bounded", "append"}, "whether generated tokens drop rows"),
    integer_option("pyramid_grace", "grace", 16, 0, 1 << 30,
                   "newest rows, never dropped; shrinks where the budget is small"),
    real_option("pyramid_decay", "decay", 0.98, 0, 1, "multiplies all scores once a token").above_min(),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.budget("pyramid_budget", {"pyramid_n_sink"});
  if (options.has_value("pyramid_resolved_budget")) rules.budget("pyramid_resolved_budget", {"pyramid_n_sink"});
  rules.that(options.integer("pyramid_kernel") % 2 == 1, "pyramid_kernel", "odd numbers");
  return rules.broken();
}

void plan(const Options& options, std::span<LayerPlan> layers) {
  const std::vector<int> budgets = pyramid_budgets(
      static_cast<int>(layers.size()), options.integer("pyramid_budget"), options.integer("pyramid_n_sink"),
      options.real("pyramid_beta"), options.integer("pyramid_window"),
      options.choice("pyramid_schedule") == "linear" ? PyramidSchedule::linear : PyramidSchedule::paper);
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].resolved.emplace_back("pyramid_resolved_budget", int64_t{budgets[i]});
  }
}

}  // namespace

extern const MethodDef method_pyramidkv = {
    .name = "pyramidkv",
    .family = "eviction",
    .title = "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling",
    .paper = "2406.02069",
    .summary = "rows that the last queries of the prompt attend to, more of them in early layers",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("pyramid_kept_bytes"),
    .check = check,
    .build = {},
    .chooses_rows = true,
    .cache_class = "PyramidKVCache",
    .options_struct = "PyramidKVOptions",
    .plan = plan,
};

}  // namespace veloxquant
