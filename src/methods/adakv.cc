// Ada-KV (arXiv:2407.11550) on bits in place of rows: heads whose keys matter more get the wider codes, so that the
// mean over heads is what was asked for. Blocks that are sealed keep their width.
//
// bytes per token and kv head: dim_k * (b / 8 + 4 / g) at the head's width b; values exact
#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    real_option("adakv_target_avg_bits", "bits", 2.5, 1, 8, "mean bits of a key code over heads"),
    integer_option("adakv_lo_bit", "lo", 2, 1, 8, "the narrowest width"),
    integer_option("adakv_mid_bit", "mid", 3, 1, 8, "the one between"),
    integer_option("adakv_hi_bit", "hi", 4, 1, 8, "the widest"),
    integer_option("adakv_group_size", "group", 32, 1, 1 << 16, "tokens that share zero and scale of a channel"),
    integer_option("adakv_update_interval", "interval", 1, 1, 1 << 30, "calls between two allocations"),
    choice_option("adakv_importance", "importance", {"norm_variance", "attention_entropy"},
                  "what makes a head important"),
    integer_option("adakv_obs_window", "obs_window", 32, 1, 1 << 30, "rows that attention_entropy looks at"),
    boolean_option("quantize_values", "", false, "values in codes of the head's width too"),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.ordered("adakv_lo_bit", "adakv_mid_bit");
  rules.ordered("adakv_mid_bit", "adakv_hi_bit");
  return rules.broken();
}

}  // namespace

extern const MethodDef method_adakv = {
    .name = "adakv",
    .family = "quantization",
    .title = "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation, on the bits of heads",
    .paper = "2407.11550",
    .summary = "keys of each kv head in 2, 3 or 4 bits by its importance, at a mean width",
    .options = kOptions,
    .capabilities = {.chunk_invariant = false},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "AdaKVCache",
    .options_struct = "AdaKVOptions",
    .keys_only = true,
};

}  // namespace veloxquant
