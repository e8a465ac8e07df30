// What the methods of single vectors share: options, the value codec, when keys are coded.
#pragma once

#include <fmt/format.h>

#include <initializer_list>

#include "veloxquant/codecs.h"
#include "veloxquant/registry.h"

namespace veloxquant::vector_cache {

// Streams of random numbers, one a codec.
inline constexpr uint32_t kKeyStream = 0, kValueStream = 1, kOutlierStream = 2;

inline std::vector<OptionSpec> outlier_options(std::string_view switch_meaning) {
  return {
      integer_option("n_outlier_channels", "outliers", 0, 0, (1 << 16) - 1,
                     "key channels that get a codec of their own; none: 0")
          .none_by_default(),
      integer_option("n_calib_tokens", "calibration", 200, 1, 1 << 30,
                     "first keys, exact until the outlier channels are chosen from them; none: 200")
          .none_by_default(),
      boolean_option("enable_outlier_two_stream", "two_stream", false, switch_meaning),
  };
}
inline OptionSpec jl_dim_option(std::string_view meaning) {
  return integer_option("jl_dim", "m", 0, 1, 1 << 20, meaning).none_by_default();
}
inline OptionSpec rotation_option() {
  return choice_option("rotation", "", {"haar", "rht"},
                       "dense random rotation, or rounds of signs and Hadamard transform");
}
inline OptionSpec value_codec_option() {
  return choice_option("value_codec", "", {"int8", "turboquant"},
                       "values as int8 with a scale a row, or rotated and coded as the keys of turboquant_mse are");
}
/// Options that chose a kernel in the original system: results are the same.
inline std::vector<OptionSpec> kernel_options() {
  return {boolean_option("enable_vectorized_attend", "", true, "accepted; the result is the same"),
          boolean_option("enable_fused_query_dot", "", false, "accepted; the result is the same")};
}
inline void read_kernel_options(const Options& options) {
  (void)options.boolean("enable_vectorized_attend");
  (void)options.boolean("enable_fused_query_dot");
}

/// The options of a method and, behind them, others.
inline std::vector<OptionSpec> joined(std::vector<OptionSpec> options,
                                      std::initializer_list<std::vector<OptionSpec>> more) {
  for (const std::vector<OptionSpec>& rows : more) options.insert(options.end(), rows.begin(), rows.end());
  return options;
}

inline int value_or(const Options& options, std::string_view name, int otherwise) {
  return options.has_value(name) ? options.integer(name) : otherwise;
}
/// Outlier channels that are coded apart; 0 where the switch is off.
inline int outliers(const Options& options) {
  const int channels = value_or(options, "n_outlier_channels", 0);
  return options.boolean("enable_outlier_two_stream") ? channels : 0;
}
inline Rotation rotation(const Options& options) {
  return options.choice("rotation") == "rht" ? Rotation::rht : Rotation::haar;
}

/// Problems of options with the layer's shape; jl_dim may be `most_sketch` times the head size.
inline std::vector<std::string> check(const Options& options, const LayerShape& shape, int most_sketch) {
  std::vector<std::string> problems;
  const auto want = [&](std::string_view name, int64_t most) {
    if (options.has_value(name) && options.integer(name) > most) {
      problems.push_back(fmt::format("{}: got {}, allowed up to {} with {} key channels", name, options.integer(name),
                                     most, shape.dim_k));
    }
  };
  want("n_outlier_channels", shape.dim_k - 1);
  want("jl_dim", int64_t{most_sketch} * shape.dim_k);
  return problems;
}

/// Keys in one codec, or in two where there are outlier channels: codec(channels, bits of the outlier codec, stream).
inline Recipe recipe(const Options& options, const BuildContext& context, std::shared_ptr<const Codec> key,
                     std::shared_ptr<const Codec> outlier, LloydRow value) {
  const int calibration = value_or(options, "n_calib_tokens", 200);
  Recipe recipe;
  recipe.placement = outlier ? after_fit(calibration) : direct();
  recipe.key =
      outlier ? channel_split({context.shape.dim_k, calibration, std::move(outlier), std::move(key)}) : std::move(key);
  value.dim = context.shape.dim_v;
  value.seed = context.seed;
  value.stream = kValueStream;
  value.role = context.role(Side::value);
  recipe.value = options.choice("value_codec") == "int8" ? int8_row(value.dim, value.role) : lloyd_row(value);
  return recipe;
}

inline std::vector<Telemetry> telemetry() {
  return {
      {"memory_bytes", "keys and values, and keys that wait for their outlier channels",
       [](const CacheStats& s) { return static_cast<double>(s.used_bytes); }},
      {"compressed_key_bytes", "coded keys",
       [](const CacheStats& s) { return static_cast<double>(s.key.coded_bytes); }},
      {"compressed_value_bytes", "coded values",
       [](const CacheStats& s) { return static_cast<double>(s.value.coded_bytes); }},
      {"residual_fp16_bytes", "keys that wait for their outlier channels",
       [](const CacheStats& s) { return static_cast<double>(s.key.exact_bytes); }},
  };
}

}  // namespace veloxquant::vector_cache
