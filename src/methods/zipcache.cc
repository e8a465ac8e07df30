// ZipCache (arXiv:2405.14256): tokens that get the most attention, normalised by how many queries could see them, are
// coded with more bits than the others.
//
// bytes per token and kv head: keys dim_k * (b / 8 + 4 / g) in its class, values dim_v * hi / 8 + 4, a bit for the
// class
#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("zipcache_hi_bits", "hi", 4, 1, 8, "bits of salient tokens, and of values"),
    integer_option("zipcache_lo_bits", "lo", 2, 1, 8, "bits of the others"),
    real_option("zipcache_hi_fraction", "hi_fraction", 0.2, 0, 1, "share of salient tokens"),
    integer_option("zipcache_group_size", "group", 32, 1, 1 << 16,
                   "tokens of one class that share zero and scale of a channel"),
    boolean_option("zipcache_quantize_values", "", true, "false: values stay exact"),
    integer_option("stream_gap", "", 100, 1, 1 << 30, "tokens after which classes are given"),
    choice_option("saliency", "", {"auto", "norm"}, "from attention where queries come, or from keys alone"),
    boolean_option("value_mixed", "", false, "values in the bits of their token's class"),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.ordered("zipcache_lo_bits", "zipcache_hi_bits");
  return rules.broken();
}

}  // namespace

extern const MethodDef method_zipcache = {
    .name = "zipcache",
    .family = "quantization",
    .title = "ZipCache: Accurate and Efficient KV Cache Quantization with Salient Token Identification",
    .paper = "2405.14256",
    .summary = "salient tokens in 4 bits, the others in 2",
    .options = kOptions,
    .capabilities = {.chunk_invariant = false},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "ZipCacheKVCache",
    .options_struct = "ZipCacheOptions",
};

}  // namespace veloxquant
