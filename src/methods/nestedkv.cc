// NestedKV (arXiv:2605.26678): a row is kept if its key departs from what the sequence, its neighbourhood or the newest
// window looks like; heads share one budget by how much their rows stand out.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8
#include "methods/eviction.h"
#include "methods/rules.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("nestedkv_budget", "budget", 512, 1, 1 << 30, "rows kept per kv head, in the mean over heads"),
    integer_option("nestedkv_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    integer_option("nestedkv_window", "window", 64, 1, 1 << 30, "newest rows that make the current anchor"),
    real_option("nestedkv_beta", "beta", 3.0, 0, 1000000.0, "temperature of the blend"),
    real_option("nestedkv_tau", "tau", 0.6, -1000000.0, 1000000.0, "threshold of surprise"),
    real_option("nestedkv_kappa", "kappa", 10.0, 0, 1000000.0, "sharpness of the gate"),
    real_option("nestedkv_safeguard_alpha", "safeguard", 0.2, 0, 1, "share of the uniform budget that each head keeps"),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.budget("nestedkv_budget", {"nestedkv_n_sink"});
  return rules.broken();
}

}  // namespace

extern const MethodDef method_nestedkv = {
    .name = "nestedkv",
    .family = "eviction",
    .title = "NestedKV: Nested Memory Routing for Long-Context KV Cache Compression",
    .paper = "2605.26678",
    .summary = "rows that stand out among keys at three scales of time, budgets by head",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("nestedkv_kept_bytes"),
    .check = check,
    .build = {},
    .chooses_rows = true,
    .cache_class = "NestedKVKVCache",
    .options_struct = "NestedKVOptions",
};

}  // namespace veloxquant
