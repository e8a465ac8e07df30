// CacheGen (arXiv:2310.07240): differences of neighbouring tokens have a peaked distribution that depends on the
// channel, so codes are entropy-coded with tables per channel. Early layers matter more and get more bits.
//
// bytes: the coded streams as they are, tables, and the parameters of groups
#include <algorithm>
#include <cmath>

#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("cachegen_bits", "bits", 4, 1, 8, "bits of a code in the first group of layers"),
    integer_option("cachegen_group_size", "group", 32, 1, 1 << 16, "tokens that share zero and scale of a channel"),
    boolean_option("cachegen_use_delta", "delta", true, "differences of neighbouring tokens may be coded"),
    boolean_option("cachegen_per_channel", "per_channel", true, "tables per channel"),
    integer_option("cachegen_layer_groups", "layer_groups", 3, 1, 1 << 16,
                   "groups of layers; each next one has a bit less, down to 2"),
    integer_option("cachegen_resolved_bits", "", 1, 1, 8, "bits of this layer, from for_model; none: cachegen_bits")
        .none_by_default(),
    choice_option("resident", "", {"entropy", "packed"},
                  "what stands in memory: entropy-coded chunks, or packed ones that are coded in a saved state"),
    choice_option("scheme", "", {"codes", "paper"}, "what is coded"),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  const bool resolved = options.has_value("cachegen_resolved_bits");
  const int64_t bits = options.integer64(resolved ? "cachegen_resolved_bits" : "cachegen_bits");
  rules.that(options.choice("scheme") == "codes" || bits >= 2, "scheme", "codes with 1 bit: differences have a sign");
  return rules.broken();
}

// Group c of M begins at layer round(L c / M), halves to even; its bits are those of the first less c, but not below 2.
void plan(const Options& options, std::span<LayerPlan> layers) {
  const auto count = static_cast<int64_t>(layers.size());
  const int64_t groups = std::min(options.integer64("cachegen_layer_groups"), count);
  const int64_t bits = options.integer64("cachegen_bits");
  for (int64_t c = 0; c < groups; ++c) {
    const auto begin = [&](int64_t group) {
      return std::llrint(static_cast<double>(count * group) / static_cast<double>(groups));
    };
    for (int64_t l = begin(c); l < begin(c + 1); ++l) {
      LayerPlan& layer = layers[static_cast<size_t>(l)];
      layer.resolved.emplace_back("cachegen_resolved_bits", std::max(std::min<int64_t>(2, bits), bits - c));
      layer.group = "layer group " + std::to_string(c);
    }
  }
}

}  // namespace

extern const MethodDef method_cachegen = {
    .name = "cachegen",
    .family = "quantization",
    .title = "CacheGen: KV Cache Compression and Streaming for Fast Large Language Model Serving",
    .paper = "2310.07240",
    .summary = "grouped codes, entropy-coded losslessly; deeper layers get fewer bits",
    .options = kOptions,
    .capabilities = {},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "CacheGenKVCache",
    .options_struct = "CacheGenOptions",
    .bits_option = "cachegen_bits",
    .plan = plan,
};

}  // namespace veloxquant
