// MorphKV (arXiv:2503.00979): the newest W tokens vote with their attention for the older rows that stay.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8, and the queries of the window
#include "methods/eviction.h"
#include "methods/rules.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("morphkv_budget", "budget", 512, 1, 1 << 30, "rows kept per kv head, sinks and window included"),
    integer_option("morphkv_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    integer_option("morphkv_window", "window", 8, 1, 1 << 30, "newest rows, never dropped, whose queries vote"),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.budget("morphkv_budget", {"morphkv_n_sink", "morphkv_window"});
  return rules.broken();
}

}  // namespace

extern const MethodDef method_morphkv = {
    .name = "morphkv",
    .family = "eviction",
    .title = "Dialogue Without Limits: Constant-Sized KV Caches for Extended Responses in LLMs",
    .paper = "2503.00979",
    .summary = "rows that the newest tokens attend to, a constant number",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("morphkv_kept_bytes"),
    .check = check,
    .build = {},
    .chooses_rows = true,
    .cache_class = "MorphKVKVCache",
    .options_struct = "MorphKVOptions",
};

}  // namespace veloxquant
