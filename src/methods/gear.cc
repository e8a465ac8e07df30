// GEAR (arXiv:2403.05527): few outliers are taken out, the rest is coded in groups, and a low-rank matrix makes up for
// the coherent part of the error.
//
// bytes: codes, factors of rank r for each block of tokens, index and value of each outlier
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("gear_bits", "bits", 2, 1, 8, "bits of a code"),
    integer_option("gear_rank", "rank", 0, 0, 65536, "rank of the correction; none: by energy").none_by_default(),
    real_option("gear_energy_threshold", "energy", 0.9, 0, 1, "share of the error's energy that the rank covers")
        .above_min(),
    real_option("gear_sparse_fraction", "sparse", 0.01, 0, 0.25, "share of entries that are outliers"),
    integer_option("gear_group_size", "group", 32, 1, 1 << 16,
                   "codes that share zero and scale: tokens for keys, channels for values"),
    boolean_option("gear_quantize_values", "", true, "false: values stay exact"),
    choice_option("order", "", {"paper", "reference"}, "order in which the three parts are taken"),
};

}  // namespace

extern const MethodDef method_gear = {
    .name = "gear",
    .family = "quantization",
    .title = "GEAR: An Efficient KV Cache Compression Recipe for Near-Lossless Generative Inference of LLM",
    .paper = "2403.05527",
    .summary = "grouped codes, with a low-rank and a sparse correction of their error",
    .options = kOptions,
    .capabilities = {.chunk_invariant = false},
    .telemetry = {},
    .check = {},
    .build = {},
    .cache_class = "GEARKVCache",
    .options_struct = "GEAROptions",
    .bits_option = "gear_bits",
};

}  // namespace veloxquant
