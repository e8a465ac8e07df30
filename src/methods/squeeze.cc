// SqueezeAttention (arXiv:2404.04793): after the prompt each layer reports how much it changes the stream; those that
// change it little give budget to the others.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8
#include "methods/eviction.h"
#include "methods/rules.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("squeeze_budget", "budget", 512, 1, 1 << 30, "rows kept per kv head, in the mean over layers"),
    integer_option("squeeze_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    real_option("squeeze_strength", "strength", 1.0, 0, 1, "0: all layers alike; 1: all that the rule moves"),
    integer_option("squeeze_resolved_budget", "", 1, 1, 1 << 30,
                   "rows of this layer, whatever the others report; none: from them")
        .none_by_default(),
    choice_option("squeeze_allocator", "allocator", {"groups", "proportional"}, "how budgets follow from the reports"),
    choice_option("squeeze_importance", "importance", {"auto", "residual", "attention", "keys"},
                  "what a layer reports"),
    boolean_option("squeeze_hold", "hold", true, "nothing is dropped till all layers have reported"),
    integer_option("squeeze_grace", "grace", 16, 0, 1 << 30,
                   "newest rows, never dropped; shrinks where the budget is small"),
    real_option("squeeze_decay", "decay", 0.98, 0, 1, "multiplies all scores once a token").above_min(),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.budget("squeeze_budget", {"squeeze_n_sink"});
  if (options.has_value("squeeze_resolved_budget")) rules.budget("squeeze_resolved_budget", {"squeeze_n_sink"});
  return rules.broken();
}

void plan(const Options&, std::span<LayerPlan> layers) {
  for (LayerPlan& layer : layers) layer.group = "budget from all layers after the prompt";
}

}  // namespace

extern const MethodDef method_squeeze = {
    .name = "squeeze",
    .family = "eviction",
    .title = "SqueezeAttention: 2D Management of KV-Cache in LLM Inference via Layer-wise Optimal Budget",
    .paper = "2404.04793",
    .summary = "rows by attention, with budgets that move from layers that change little to others",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("squeeze_kept_bytes"),
    .check = check,
    .build = {},
    .chooses_rows = true,
    .cache_class = "SqueezeAttentionCache",
    .options_struct = "SqueezeAttentionOptions",
    .coordinator = "SqueezeCoordinator",
    .plan = plan,
};

}  // namespace veloxquant
