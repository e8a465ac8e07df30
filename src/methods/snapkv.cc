// SnapKV (arXiv:2404.14469): the last queries of the prompt vote for the rows that stay.
//
// At the end of a prefill, per kv head: mean attention weight from the last `snap_obs_window` queries, pooled over
// neighbouring positions; sinks, the window itself and the best of the rest stay. Tokens of the answer are never
// dropped. A prefill cut by hints (prefill_more .. prefill_last) selects once, over the whole prompt.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8
#include <fmt/format.h>

#include "methods/eviction.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("snap_budget", "budget", 512, 1, 1 << 30,
                   "rows kept per kv head after a prefill, sinks and window included"),
    integer_option("snap_obs_window", "window", 32, 1, 1 << 30,
                   "queries that vote, and rows that are kept as the window"),
    integer_option("snap_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, always kept"),
    choice_option("snap_dtype", "", {"auto", "float16"}, "element type of the rows: that of the input, or fp16"),
    choice_option("snap_backend", "", {"auto", "mlx", "metal", "reference"}, "accepted; all give the same result"),
    boolean_option("snap_batched_scoring", "", true, "accepted; the result is the same"),
    integer_option("snap_kernel", "kernel", 5, 1, 1 << 30, "positions that are pooled, an odd number; 1: none"),
    choice_option("snap_pool", "pool", {"max", "avg", "none"}, "how neighbouring scores are pooled"),
    boolean_option("snap_keep_window", "keep_window", true,
                   "rows of the window are kept, else they compete like the rest"),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  (void)options.choice("snap_backend");
  (void)options.boolean("snap_batched_scoring");
  const int kernel = options.integer("snap_kernel");
  if (kernel % 2 == 1) return {};
  return {fmt::format("snap_kernel: got {}, allowed odd numbers", kernel)};
}

Recipe build(const Options& options, const BuildContext& context) {
  Recipe recipe = eviction::exact_rows(context);
  const int budget = options.integer("snap_budget"), window = options.integer("snap_obs_window");
  const std::string& pool = options.choice("snap_pool");
  if (options.choice("snap_dtype") == "float16") recipe.store = DType::f16;
  recipe.query_source = eviction::query_source(options);
  recipe.retention = topk({.name = "snapkv",
                           .when = Retention::When::prefill,
                           .budget = budget,
                           .n_sink = options.integer("snap_n_sink"),
                           .recent = options.boolean("snap_keep_window") ? window : 0,
                           .pooling = pool == "max"   ? Pooling::max
                                      : pool == "avg" ? Pooling::average
                                                      : Pooling::none,
                           .pool_width = options.integer("snap_kernel"),
                           .scorer = attention_window(window)});
  return recipe;
}

}  // namespace

extern const MethodDef method_snapkv = {
    .name = "snapkv",
    .family = "eviction",
    .title = "SnapKV: LLM Knows What You are Looking for Before Generation",
    .paper = "2404.14469",
    .summary = "after the prompt, keeps the rows that its last queries attend to",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry =
        {
            {"tokens_kept", "rows of all sequences and kv heads",
             [](const CacheStats& s) { return static_cast<double>(s.rows_kept); }},
            {"tokens_total", "tokens of all sequences and kv heads",
             [](const CacheStats& s) { return static_cast<double>(s.tokens_seen); }},
            {"evicted_key_bytes", "kept keys at 2 bytes an element",
             [](const CacheStats& s) { return eviction::kept_bytes(s) / 2; }},
            {"evicted_value_bytes", "kept values at 2 bytes an element",
             [](const CacheStats& s) { return eviction::kept_bytes(s) / 2; }},
            {"full_key_bytes", "all keys at 2 bytes an element",
             [](const CacheStats& s) { return eviction::full_bytes(s) / 2; }},
            {"full_value_bytes", "all values at 2 bytes an element",
             [](const CacheStats& s) { return eviction::full_bytes(s) / 2; }},
            {"eviction_ratio", "full bytes over kept bytes; 1 when nothing is stored", eviction::ratio},
            {"keep_rate", "tokens_kept over tokens_total; 1 at the start",
             [](const CacheStats& s) {
               return s.tokens_seen == 0 ? 1.0 : static_cast<double>(s.rows_kept) / static_cast<double>(s.tokens_seen);
             }},
        },
    .check = check,
    .build = build,
    .chooses_rows = true,
    .cache_class = "SnapKVKVCache",
    .options_struct = "SnapKVOptions",
};

}  // namespace veloxquant
