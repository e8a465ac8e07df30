// XQuant (arXiv:2510.11236): codes of neighbouring layers are nearly equal, so a group stores those of its first layer,
// and each layer zero and scale of its own, and a coded rest where that is asked for.
//
// bytes per token, kv head and side: dim * base / 8 in the first layer, residual_bits in the others, 4 / g a channel
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("xquant_group_size", "group_layers", 2, 2, 1 << 16, "layers of a group"),
    integer_option("xquant_base_bits", "bits", 2, 1, 8, "bits of the shared code"),
    integer_option("xquant_residual_bits", "residual_bits", 4, 0, 8,
                   "bits of another layer's rest; 0: none, as in the paper"),
    integer_option("xquant_group_quant_size", "group", 32, 1, 1024,
                   "codes that share zero and scale: tokens for keys, channels for values"),
    integer_option("xquant_max_ctx", "max_ctx", 8192, 2, 1 << 30,
                   "rows that a layer may be ahead of the slowest of its group"),
    real_option("xquant_eta", "eta", 0, 0, 0.5, "shift of the ends of a range; none: by the bits").none_by_default(),
    integer_option("xquant_start_layer_k", "start_k", 0, 0, 1 << 16, "layers before it code keys by themselves"),
    integer_option("xquant_start_layer_v", "start_v", 0, 0, 1 << 16, "likewise for values"),
    integer_option("xquant_residual_length", "residual", 0, 0, 1 << 30, "newest rows that stay exact"),
    choice_option("xquant_value_axis", "value_axis", {"channel", "token"}, "what a group of values runs along"),
    choice_option("xquant_one_bit", "one_bit", {"eta", "two_means"}, "levels of one-bit codes"),
    array_option("xquant_merge_weights",
                 "[xquant_group_size], of each layer in the shared codes, sum 1; none: the first"),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  const int64_t least = 2 * options.integer64("xquant_group_quant_size");
  rules.that(options.integer64("xquant_max_ctx") >= least, "xquant_max_ctx",
             fmt::format("at least {}: twice xquant_group_quant_size", least));
  if (rules.shape("xquant_merge_weights", {{options.integer64("xquant_group_size")}})) {
    const std::vector<float>& weights = std::get<ArrayValue>(options.value("xquant_merge_weights")).data;
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    rules.that(std::fabs(sum - 1) <= 1e-5, "xquant_merge_weights", "numbers that sum up to 1");
  }
  return rules.broken();
}

void plan(const Options& options, std::span<LayerPlan> layers) {
  const int size = options.integer("xquant_group_size");
  const int start_k = options.integer("xquant_start_layer_k"), start_v = options.integer("xquant_start_layer_v");
  for (LayerPlan& layer : layers) {
    const bool keys = layer.index >= start_k, values = layer.index >= start_v;
    if (layer.index % size != 0 && !keys && !values) {
      layer.group = "below start";
      continue;
    }
    layer.group_id = layer.index / size;
    const char* role = layer.index % size == 0 ? "anchor"
                       : keys && values        ? "reuses codes"
                       : keys                  ? "reuses codes of keys"
                                               : "reuses codes of values";
    layer.group = fmt::format("{} of group {}", role, layer.group_id);
  }
}

}  // namespace

extern const MethodDef method_xquant = {
    .name = "xquant",
    .family = "quantization",
    .title = "XQuant: Achieving Ultra-Low Bit KV Cache Quantization with Cross-Layer Compression",
    .paper = "2510.11236",
    .summary = "neighbouring layers share the codes of one, with ranges of their own",
    .options = kOptions,
    .capabilities = {},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "XQuantKVCache",
    .options_struct = "XQuantOptions",
    .bits_option = "xquant_base_bits",
    .coordinator = "XQuantCoordinator",
    .plan = plan,
};

}  // namespace veloxquant
