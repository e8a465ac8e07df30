// AMC (arXiv:2607.10109): each row gets one of three precisions by how salient it is among its neighbours, fewer
// channels and fewer bits as saliency falls.
//
// bytes: per row its tier's channels at the tier's bits, a scale for each group of channels, 2 bits for the tier
#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    real_option("amc_k_high", "k_high", 0.2, 0, 1, "share of rows in the highest tier"),
    real_option("amc_k_mid", "k_mid", 0.3, 0, 1, "share of rows in the middle tier"),
    boolean_option("amc_use_query_saliency", "", false, "saliency from queries too"),
    real_option("amc_query_alpha", "alpha", 0.5, 0, 1, "balance of keys and queries in the saliency"),
    boolean_option("amc_adaptive_thresholds", "", false, "thresholds follow the variance of recent saliencies"),
    integer_option("amc_threshold_window", "window", 64, 2, 1 << 30, "rows that thresholds are taken from"),
    real_option("amc_gamma", "gamma", 0.1, 0, 1000000.0, "gain of adaptive thresholds"),
    real_option("amc_calib_variance", "", 1, 0, 1e+30, "variance of saliencies at calibration; none: not calibrated")
        .none_by_default()
        .above_min(),
    integer_option("amc_group_size", "group", 32, 1, 1 << 16, "channels that share a scale"),
    boolean_option("pair_channels", "", false, "channels that RoPE rotates together are kept or dropped together"),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  const double high = options.real("amc_k_high"), mid = options.real("amc_k_mid");
  rules.that(high + mid <= 1, "amc_k_high", "shares that together with amc_k_mid are at most 1");
  rules.that(!options.boolean("amc_adaptive_thresholds") || options.has_value("amc_calib_variance"),
             "amc_adaptive_thresholds", "true with amc_calib_variance alone");
  return rules.broken();
}

}  // namespace

extern const MethodDef method_amc = {
    .name = "amc",
    .family = "quantization",
    .title =
        "Adaptive Model Compression (AMC): Saliency-Driven Resource Allocation for Ultra-Low-Power Transformer "
        "Inference",
    .paper = "2607.10109",
    .summary = "rows in three precisions by their saliency",
    .options = kOptions,
    .capabilities = {.trimmable = false, .chunk_invariant = false},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "AMCKVCache",
    .options_struct = "AMCOptions",
};

}  // namespace veloxquant
