// Q-Filters (arXiv:2503.02812): queries of a head lean to one direction; the projection of a key on it tells how much
// attention it will get, without any query at hand.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8; the filters once
#include "methods/eviction.h"
#include "methods/rules.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("qfilters_budget", "budget", 512, 1, 1 << 30, "rows kept per kv head, sinks included"),
    integer_option("qfilters_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    integer_option("qfilters_recent", "recent", 0, 0, 1 << 30, "newest rows, never dropped"),
    integer_option("qfilters_calib_tokens", "calib_tokens", 128, 2, 1 << 30,
                   "rows that a filter is taken from where none is given"),
    integer_option("qfilters_sign", "sign", 1, -1, 1, "1: the largest projections stay; -1: the smallest")
        .only({-1, 1}),
    real_option("qfilters_min_retention", "min_retention", 0.9, 0, 1,
                "least share of a sequence's rows that should stay; none: not looked at")
        .above_min()
        .or_none(),
    choice_option("qfilters_on_low_retention", "on_low_retention", {"warn", "raise", "ignore"},
                  "what happens below it, once"),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.budget("qfilters_budget", {"qfilters_n_sink", "qfilters_recent"});
  return rules.broken();
}

}  // namespace

extern const MethodDef method_qfilters = {
    .name = "qfilters",
    .family = "eviction",
    .title = "Q-Filters: Leveraging QK Geometry for Efficient KV Cache Compression",
    .paper = "2503.02812",
    .summary = "rows whose keys lie farthest along the direction of queries",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = {},
    .check = check,
    .build = {},
    .chooses_rows = true,
    .cache_class = "QFiltersKVCache",
    .options_struct = "QFiltersOptions",
};

}  // namespace veloxquant
