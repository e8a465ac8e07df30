// VecInfer (arXiv:2510.06175): a scale per channel and a Hadamard transform take outliers from keys; runs of channels
// are then coded by codebooks, and attention is summed up from tables of a query's products with their entries.
//
// bytes per row and kv head: ceil(dim / sub_dim * codebook_bits / 8) a side; the codebooks once
#include <fmt/format.h>

#include <algorithm>

#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("key_sub_dim", "", 4, 1, 16, "channels of a key that share a code"),
    integer_option("value_sub_dim", "", 8, 1, 32, "channels of a value that share a code"),
    integer_option("key_codebook_bits", "", 12, 1, 16, "bits of a key code"),
    integer_option("value_codebook_bits", "", 8, 1, 16, "bits of a value code"),
    integer_option("residual_length", "residual", 128, 0, 1 << 30, "newest rows that stay exact"),
    integer_option("vecinfer_flush", "flush", 32, 1, 32, "rows that leave the exact window at once").only({1, 32}),
    array_option("smooth_factors", "scale of each channel of keys: [dim] or [kv_heads][dim]").beside_struct(),
    array_option("key_codebook", "[2^bits][sub_dim], one for each run of channels, or one more for each head")
        .beside_struct(),
    array_option("value_codebook", "[2^bits][sub_dim], one for each run of channels, or one more for each head")
        .beside_struct(),
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  const int64_t sub_k = options.integer64("key_sub_dim"), sub_v = options.integer64("value_sub_dim");
  rules.that(shape.dim_k % sub_k == 0, "key_sub_dim", fmt::format("divisors of head_dim {}", shape.dim_k));
  rules.that(shape.dim_v % sub_v == 0, "value_sub_dim", fmt::format("divisors of head_dim {}", shape.dim_v));
  const auto book = [&](std::string_view name, int64_t dim, int64_t sub, int bits) {
    const int64_t entries = int64_t{1} << bits, runs = dim / sub;
    rules.shape(name, {{entries, sub}, {runs, entries, sub}, {shape.kv_heads, runs, entries, sub}});
  };
  book("key_codebook", shape.dim_k, sub_k, options.integer("key_codebook_bits"));
  book("value_codebook", shape.dim_v, sub_v, options.integer("value_codebook_bits"));
  rules.shape("smooth_factors", {{shape.dim_k}, {shape.kv_heads, shape.dim_k}, {shape.q_heads, shape.dim_k}});
  if (options.has_value("smooth_factors")) {
    const std::vector<float>& factors = std::get<ArrayValue>(options.value("smooth_factors")).data;
    rules.that(std::ranges::all_of(factors, [](float x) { return x > 0; }), "smooth_factors", "numbers above 0");
  }
  return rules.broken();
}

}  // namespace

extern const MethodDef method_vecinfer = {
    .name = "vecinfer",
    .family = "quantization",
    .title = "VecInfer: Efficient LLM Inference with Low-Bit KV Cache via Outlier-Suppressed Vector Quantization",
    .paper = "2510.06175",
    .summary = "keys smoothed and rotated, both sides in codes of learned books, newest rows exact",
    .options = kOptions,
    .capabilities = {},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "VecInferKVCache",
    .options_struct = "VecInferOptions",
};

}  // namespace veloxquant
