// RocketKV (arXiv:2502.14051): the prompt is cut down once as in SnapKV; of what is left each query reads the pages
// whose bounds promise it the most attention.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 4; for each page its largest and smallest keys
#include <fmt/format.h>

#include "methods/eviction.h"
#include "methods/rules.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    real_option("rocketkv_compression_ratio", "ratio", 8.0, 1, 1000000.0,
                "rows of the prompt over rows read by a query")
        .above_min(),
    integer_option("rocketkv_page_size", "page", 1, 1, 1 << 30, "rows of a page; none: from the ratio")
        .none_by_default(),
    integer_option("rocketkv_head_topk1", "topk1", 1, 1, 65536,
                   "channels that estimate attention; none: from the ratio")
        .none_by_default(),
    integer_option("rocketkv_obs_window", "obs_window", 32, 1, 1 << 30, "queries that vote; also rows that stay"),
    integer_option("rocketkv_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    boolean_option("multi_turn", "", false, "all rows stay, and the choice after a prompt only limits what is read"),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  if (options.has_value("rocketkv_head_topk1"))
    rules.that(options.integer("rocketkv_head_topk1") <= shape.dim_k, "rocketkv_head_topk1",
               fmt::format("1..{} with this head_dim", shape.dim_k));
  return rules.broken();
}

}  // namespace

extern const MethodDef method_rocketkv = {
    .name = "rocketkv",
    .family = "hybrid",
    .title = "RocketKV: Accelerating Long-Context LLM Inference via Two-Stage KV Cache Compression",
    .paper = "2502.14051",
    .summary = "prompt rows chosen once, then the pages that each query needs",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = {},
    .check = check,
    .build = {},
    .chooses_rows = true,
    .cache_class = "RocketKVKVCache",
    .options_struct = "RocketKVOptions",
};

}  // namespace veloxquant
