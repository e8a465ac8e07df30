// CaM (ICML 2024, PMLR 235:58840): a row that has to go is merged into those behind it, with a probability that follows
// from its share of attention, so that outputs stay unbiased.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8
#include "methods/eviction.h"
#include "methods/rules.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("cam_budget", "budget", 512, 0, 1 << 30, "rows kept per kv head, sinks included"),
    integer_option("cam_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped and never merged into"),
    choice_option("cam_merge", "merge", {"sim_weighted", "mean", "drop"},
                  "how a victim is split among its targets; drop: h2o"),
    boolean_option("cam_merge_keys", "merge_keys", false, "keys are merged too"),
    boolean_option("cam_merge_gate", "gate", true, "a draw decides whether a victim is merged"),
    integer_option("cam_window", "window", 16, 1, 1 << 30, "targets of a merge"),
    choice_option("cam_blend", "blend", {"norm", "add", "convex"}, "how a victim is added to a target"),
    integer_option("cam_grace", "grace", 16, 0, 1 << 30,
                   "newest rows, never dropped; shrinks where the budget is small"),
    real_option("cam_decay", "decay", 0.98, 0, 1, "multiplies all scores once a token").above_min(),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.budget("cam_budget", {"cam_n_sink"});
  return rules.broken();
}

}  // namespace

extern const MethodDef method_cam = {
    .name = "cam",
    .family = "eviction",
    .title = "CaM: Cache Merging for Memory-efficient LLMs Inference",
    .paper = "",
    .summary = "rows that would be dropped are merged into their neighbours",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("cam_kept_bytes"),
    .check = check,
    .build = {},
    .chooses_rows = true,
    .cache_class = "CaMKVCache",
    .options_struct = "CaMOptions",
};

}  // namespace veloxquant
