// Kitty (arXiv:2511.18643): in each page of keys the channels of largest magnitude get extra bits, in a plane of their
// own over the codes of all channels.
//
// bytes per token and kv head: keys dim_k * (lo / 8 + 4 / g) and hi - lo bits for the boosted channels, values as kivi
#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    real_option("kitty_hi_fraction", "hi_fraction", 0.25, 0, 1, "share of channels with more bits"),
    integer_option("kitty_hi_bit", "hi", 4, 1, 8, "bits of these channels"),
    integer_option("kitty_lo_bit", "lo", 2, 1, 8, "bits of the others, and of values"),
    integer_option("kitty_group_size", "group", 32, 1, 1 << 16,
                   "codes that share zero and scale: tokens for keys, channels for values"),
    integer_option("residual_length", "residual", 128, 0, 1 << 30, "length of a page, rounded up to whole groups")
        .beside_struct(),
    integer_option("sink_length", "n_sink", 32, 0, 1 << 30, "first rows that stay exact"),
    choice_option("sensitivity", "", {"magnitude", "variance"}, "what ranks the channels"),
    boolean_option("quantize_values", "", true, "false: values stay exact"),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.ordered("kitty_lo_bit", "kitty_hi_bit");
  return rules.broken();
}

}  // namespace

extern const MethodDef method_kitty = {
    .name = "kitty",
    .family = "quantization",
    .title = "Kitty: Accurate and Efficient 2-bit KV Cache Quantization with Dynamic Channel-wise Precision Boost",
    .paper = "2511.18643",
    .summary = "kivi, with more bits for the channels of keys that need them",
    .options = kOptions,
    .capabilities = {},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "KittyKVCache",
    .options_struct = "KittyOptions",
};

}  // namespace veloxquant
