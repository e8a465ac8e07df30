// KVQuant (arXiv:2401.18079): non-uniform levels fitted to the model, keys scaled per channel and values per token, the
// largest entries of each row stored apart, the first row exact.
//
// bytes per row, kv head and side: dim * bits / 8, 3 an outlier, a count or scale; levels once
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("kvquant_bits", "bits", 3, 1, 8, "bits of a code"),
    real_option("kvquant_outlier_fraction", "outliers", 0.01, 0, 0.25, "share of entries stored apart"),
    integer_option("kvquant_group_size", "group", 32, 1, 1 << 16, "a quarter of the rows that levels are fitted to"),
    integer_option("kvquant_lloyd_iters", "iters", 8, 0, 1000, "sweeps of the fit; 0: the start alone"),
    integer_option("kvquant_refit_interval", "refit", 0, 0, 1 << 30,
                   "tokens after which levels are fitted anew; 0: never"),
    integer_option("kvquant_n_sink", "n_sink", 1, 0, 1 << 30, "first rows that stay exact"),
    choice_option("qnorm", "", {"auto", "on", "off"}, "levels keep mean and variance of what they code"),
};

}  // namespace

extern const MethodDef method_kvquant = {
    .name = "kvquant",
    .family = "quantization",
    .title = "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization",
    .paper = "2401.18079",
    .summary = "codes with learned levels per channel, outliers apart",
    .options = kOptions,
    .capabilities = {.chunk_invariant = false},
    .telemetry = {},
    .check = {},
    .build = {},
    .cache_class = "KVQuantKVCache",
    .options_struct = "KVQuantOptions",
    .bits_option = "kvquant_bits",
};

}  // namespace veloxquant
