// SKVQ (arXiv:2405.06219): channels are reordered so that those of a group are alike, each group's range is clipped
// where that lowers the error, and a window of new rows stays exact.
//
// bytes per row, kv head and side: dim * bits / 8 + 4 for each group of channels; the order of channels once
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("skvq_bits_key", "bits_key", 2, 1, 8, "bits of a key code"),
    integer_option("skvq_bits_value", "bits_value", 2, 1, 8, "bits of a value code"),
    integer_option("skvq_group_size", "group", 32, 1, 1 << 16, "channels that share zero and scale"),
    integer_option("skvq_window", "window", 128, 2, 1 << 30,
                   "newest rows that stay exact; also what channels are sorted by"),
    integer_option("skvq_n_sink", "n_sink", 5, 0, 1 << 30, "first rows that stay exact"),
    boolean_option("skvq_reorder", "reorder", true, "channels are sorted"),
    boolean_option("skvq_clip_search", "clip_search", true, "the clip of each group is searched"),
    real_option("skvq_clip_alpha", "clip", 1.0, 0, 1, "the clip where it is not searched").above_min(),
    integer_option("skvq_max_ctx", "max_ctx", 1, 1, 1 << 30, "most tokens a sequence may store; none: no limit")
        .none_by_default(),
    choice_option("clip_anchor", "", {"midpoint", "zero"}, "what a clipped range shrinks towards"),
    choice_option("param_format", "", {"fp16", "fp8_e4m3"}, "zero and scale of a group"),
    integer_option("value_levels", "", 3, 3, 3,
                   "levels of a value code, five codes in a byte; none: by skvq_bits_value")
        .none_by_default(),
};

}  // namespace

extern const MethodDef method_skvq = {
    .name = "skvq",
    .family = "quantization",
    .title = "SKVQ: Sliding-window Key and Value Cache Quantization for Large Language Models",
    .paper = "2405.06219",
    .summary = "channels sorted into alike groups, clipped codes, newest and first rows exact",
    .options = kOptions,
    .capabilities = {.trimmable = false},
    .telemetry = {},
    .check = {},
    .build = {},
    .cache_class = "SKVQKVCache",
    .options_struct = "SKVQOptions",
};

}  // namespace veloxquant
