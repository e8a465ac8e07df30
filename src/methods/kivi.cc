// kivi - "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", arXiv:2402.02750.
//
//   x^ = zero + scale * code, code in 0 .. 2^b - 1, scale = (max - min) / (2^b - 1) of a group
//   keys: a group is g consecutive tokens of one channel; values: g channels of one token
//   exact window: R' = g * max(1, ceil(R / g)) rows; keys leave it R' at a time, values one at a time
//
// bytes per token and kv head: keys dim_k * (b / 8 + 4 / g), values dim_v * b / 8 + 4 * ceil(dim_v / g); rows in the
// window stand in their exact type.
#include <algorithm>

#include "methods/kivi.h"
#include "veloxquant/codecs.h"
#include "veloxquant/registry.h"

namespace veloxquant {

std::vector<OptionSpec> kivi_options() {
  // 2^30 and 2^16 keep R' within 32 bits.
  return {
      integer_option("bit_width_inlier", "bits", 2, 1, 8, "bits of a key or value code"),
      integer_option("kivi_group_size", "group", 32, 1, 1 << 16,
                     "codes that share zero and scale: tokens for keys, channels for values"),
      integer_option("residual_length", "residual", 128, 0, 1 << 30,
                     "newest rows that stay exact, rounded up to whole groups, at least one"),
      choice_option("flush_rule", "", {"block_flush", "aligned_window"},
                    "keys leave the window all at once, as in the paper, or a group at a time on both sides"),
  };
}

Recipe kivi_recipe(const Options& options, const BuildContext& context) {
  const int bits = options.integer("bit_width_inlier");
  const int group = options.integer("kivi_group_size");
  const int residual = options.integer("residual_length");
  const int window = group * std::max(1, residual / group + (residual % group != 0));
  return {.placement = options.choice("flush_rule") == "block_flush" ? block_flush(group, residual)
                                                                     : aligned_window(group, window),
          .key = affine_block(context.shape.dim_k, bits, group, context.role(Side::key)),
          .value = affine_row(context.shape.dim_v, bits, group, context.role(Side::value))};
}

namespace {

double fp16_bytes(const CacheStats& s) { return static_cast<double>(s.key.fp16_bytes + s.value.fp16_bytes); }

double ratio(const CacheStats& s) {
  return s.used_bytes == 0 ? 1.0 : fp16_bytes(s) / static_cast<double>(s.used_bytes);
}

}  // namespace

std::vector<Telemetry> kivi_telemetry() {
  return {
      {"compressed_key_bytes", "coded keys, and the norms of all rows where they are kept",
       [](const CacheStats& s) {
         return static_cast<double>(s.key.coded_bytes + s.table_bytes - s.pool_position_bytes);
       }},
      {"compressed_value_bytes", "coded values",
       [](const CacheStats& s) { return static_cast<double>(s.value.coded_bytes); }},
      {"residual_fp16_bytes", "exact rows of the window, both sides",
       [](const CacheStats& s) { return static_cast<double>(s.key.exact_bytes + s.value.exact_bytes - s.pool_bytes); }},
      {"fp16_key_bytes", "bytes of the keys in an fp16 cache",
       [](const CacheStats& s) { return static_cast<double>(s.key.fp16_bytes); }},
      {"fp16_value_bytes", "bytes of the values in an fp16 cache",
       [](const CacheStats& s) { return static_cast<double>(s.value.fp16_bytes); }},
      {"assigned_avg_bits", "bits of a code", [](const CacheStats& s) { return static_cast<double>(s.nominal_bits); }},
      {"effective_compression_ratio", "fp16 bytes over stored bytes; 1 when empty", ratio},
      {"effective_avg_bits", "stored bits per element", [](const CacheStats& s) { return 16.0 / ratio(s); }},
  };
}

extern const MethodDef method_kivi = {
    .name = "kivi",
    .family = "quantization",
    .title = "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache",
    .paper = "2402.02750",
    .summary = "keys per channel over a group of tokens, values per token, newest rows exact",
    .options = kivi_options(),
    .capabilities = {},
    .telemetry = kivi_telemetry(),
    .check = {},
    .build = kivi_recipe,
    .cache_class = "KIVIKVCache",
    .options_struct = "KIVIOptions",
    .bits_option = "bit_width_inlier",
};

}  // namespace veloxquant
