// CurDKV (arXiv:2509.15038): keeps the rows whose leverage scores in keys and values, which stand for the product of
// attention and values, are largest.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8
#include "methods/eviction.h"
#include "methods/rules.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("curdkv_budget", "budget", 512, 1, 1 << 30, "rows kept per kv head, sinks included"),
    integer_option("curdkv_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    integer_option("curdkv_rank_cap", "rank_cap", 16, 1, 65536, "rank of the sketch"),
    real_option("curdkv_rope_base", "rope_base", 10000.0, 0, 1000000000000.0, "accepted; nothing is rotated again")
        .above_min(),
    choice_option("variant", "", {"leverage", "attn_value"},
                  "scores from norms of keys and values in their window of 16, or attention times values, summed up"),
    choice_option("leverage_type", "", {"product", "key", "value", "average"},
                  "what of the two norms a leverage score takes"),
    boolean_option("sketch", "", false, "norms after a random projection to curdkv_rank_cap, not exact ones"),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.budget("curdkv_budget", {"curdkv_n_sink"});
  return rules.broken();
}

}  // namespace

extern const MethodDef method_curdkv = {
    .name = "curdkv",
    .family = "eviction",
    .title = "Value-Guided KV Compression for LLMs via Approximated CUR Decomposition",
    .paper = "2509.15038",
    .summary = "rows with the largest leverage of keys and values",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("curdkv_kept_bytes"),
    .check = check,
    .build = {},
    .chooses_rows = true,
    .cache_class = "CurDKVKVCache",
    .options_struct = "CurDKVOptions",
};

}  // namespace veloxquant
