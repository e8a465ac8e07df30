// xKV (arXiv:2503.18893): the singular vectors of neighbouring layers are aligned, so their rows side by side have one
// basis of low rank; its coefficients are stored once for all of them.
//
// bytes per row and group: rank coefficients at latent_bits and parameters of groups of tokens; the basis once
#include <fmt/format.h>

#include <algorithm>

#include "methods/fit_options.h"
#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("xkv_group_size", "group_layers", 2, 1, 1 << 16, "layers of a group"),
    integer_option("xkv_rank", "rank", 1, 1, 1 << 30, "coefficients of a row of the group; none: by energy")
        .none_by_default(),
    real_option("xkv_energy_threshold", "energy", 0.95, 0, 1,
                "share of the sum of singular values that the rank covers")
        .above_min(),
    integer_option("xkv_latent_bits", "bits", 4, 1, 16, "bits of a coefficient; 16: fp16")
        .only({1, 2, 3, 4, 5, 6, 7, 8, 16}),
    integer_option("xkv_group_quant_size", "group", 32, 1, 1024, "tokens that share zero and scale"),
    integer_option("xkv_max_ctx", "max_ctx", 8192, 1, 1 << 30,
                   "rows that a layer may be ahead of the slowest of its group"),
    choice_option("xkv_layout", "layout", {"concat", "shared_basis"}, "rows side by side, or one basis for each"),
    integer_option("xkv_rank_v", "rank_v", 1, 1, 1 << 30,
                   "coefficients of values; none: by energy, or half as many again as xkv_rank")
        .none_by_default(),
    boolean_option("xkv_compress_keys", "keys", true, "false: keys stay exact"),
    boolean_option("xkv_compress_values", "values", true, "false: values stay exact"),
    choice_option("xkv_decode_policy", "decode", {"project", "exact"}, "generated rows: as the prompt's, or exact"),
    boolean_option("refit", "", false, "a new basis for later rows where the first one no longer fits"),
    fit_min_option(),
    fit_rows_option(),
    fit_payoff_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  const int64_t heads = options.integer64("xkv_group_size") * shape.kv_heads, width = heads * shape.dim_k;
  const auto at_most = [&](std::string_view name, int64_t most) {
    if (!options.has_value(name)) return;
    rules.that(options.integer64(name) <= most, name, fmt::format("1..{}: layers x heads x channels of a group", most));
  };
  at_most("xkv_rank", width);
  at_most("xkv_rank_v", heads * shape.dim_v);
  const int64_t fit =
      options.has_value("fit_min") ? options.integer64("fit_min") : std::clamp<int64_t>(width, 128, 512);
  const int64_t least = fit + options.integer64("xkv_group_quant_size");
  rules.that(options.integer64("xkv_max_ctx") >= least, "xkv_max_ctx",
             fmt::format("at least {}: rows of a fit and a group", least));
  return rules.broken();
}

void plan(const Options& options, std::span<LayerPlan> layers) {
  const int size = options.integer("xkv_group_size");
  for (LayerPlan& layer : layers) {
    layer.group_id = layer.index / size;
    layer.group = fmt::format("member {} of group {}", layer.index % size, layer.group_id);
  }
}

}  // namespace

extern const MethodDef method_xkv = {
    .name = "xkv",
    .family = "quantization",
    .title = "xKV: Cross-Layer KV-Cache Compression via Aligned Singular Vector Extraction",
    .paper = "2503.18893",
    .summary = "rows of neighbouring layers in one low-rank basis",
    .options = kOptions,
    .capabilities = {.chunk_invariant = false},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "XKVCache",
    .options_struct = "XKVOptions",
    .bits_option = "xkv_latent_bits",
    .coordinator = "XKVCoordinator",
    .plan = plan,
};

}  // namespace veloxquant
