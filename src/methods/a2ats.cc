// A2ATS (arXiv:2502.12665): beyond a window of exact rows, keys are coded without their rotary embedding and all stand
// at one constant distance from the query, so that one codebook serves every position; codes minimise the error of
// logits where the metric of the queries is known.
//
// bytes per far row, kv head and side: ceil(dim / sub_dim * codebook_bits / 8); the codebooks once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("a2ats_codebook_bits", "bits", 8, 1, 16, "bits of a code: the codebook has 2^bits entries"),
    integer_option("a2ats_sub_dim", "sub_dim", 8, 1, 32, "channels that share a code"),
    integer_option("a2ats_window", "window", 128, -(1 << 30), 1 << 30, "newest rows that stay exact; 0 or less: none"),
    integer_option("a2ats_b", "", 2048, 0, 1 << 30, "distance at which all far keys stand"),
    boolean_option("a2ats_use_query_aware", "", true,
                   "codes minimise the error of logits, where a2ats_query_h is given"),
    real_option("a2ats_beta", "beta", 0.5, 0, 1, "balance of a2ats_assignment = blend"),
    real_option("a2ats_retrieval_fraction", "fraction", 0.2, 0, 1, "share of far rows that a query reads exactly"),
    real_option("a2ats_rope_base", "rope_base", 10000.0, 0, 1000000000000.0, "base of the model's rotary embedding")
        .above_min(),
    map_option("a2ats_rope_scaling", "scaling of the rotary embedding: {\"rope_type\": \"default\" | \"llama3\", ...}"),
    array_option("a2ats_query_h", "second moments of queries: [sub_dim][sub_dim], or one for each run of channels"),
    array_option("a2ats_codebook", "[2^bits][sub_dim], one for each run of channels, or keys and values"),
    array_option("value_codebook", "[2^bits][sub_dim], where a2ats_codebook has keys alone").beside_struct(),
    choice_option("a2ats_assignment", "assignment", {"auto", "plain", "blend"},
                  "how codes are chosen: by the metric of queries if given, by distance, or blended"),
    choice_option("a2ats_mode", "mode", {"compress", "retrieve"},
                  "far rows are attended from their codes, or codes choose which exact rows a query reads"),
    choice_option("a2ats_fetch_frame", "", {"virtual", "pre_rope"},
                  "far keys that a host fetches: rotated so that they stand at distance a2ats_b, or not rotated"),
};

/// By a Cholesky factorisation, with the ridge that a fit adds too: a metric may be singular.
bool is_metric(const float* h, int64_t n) {
  double trace = 0;
  for (int64_t i = 0; i < n; ++i) trace += h[i * n + i];
  std::vector<double> lower(static_cast<size_t>(n * n));
  const auto at = [&](int64_t i, int64_t j) -> double& { return lower[static_cast<size_t>(i * n + j)]; };
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      if (std::fabs(h[i * n + j] - h[j * n + i]) > 1e-4 * trace) return false;
      double x = h[i * n + j] + (i == j ? 1e-4 * trace / static_cast<double>(n) : 0);
      for (int64_t k = 0; k < j; ++k) x -= at(i, k) * at(j, k);
      if (i == j && !(x > 0)) return false;
      at(i, j) = i == j ? std::sqrt(x) : x / at(j, j);
    }
  }
  return true;
}

bool are_metrics(const ArrayValue& array, int64_t n) {
  const auto count = static_cast<int64_t>(array.data.size()) / (n * n);
  for (int64_t m = 0; m < count; ++m) {
    if (!is_metric(array.data.data() + m * n * n, n)) return false;
  }
  return true;
}

bool is_scaling(const MapValue& map) {
  const auto type = map.contains("rope_type") ? map.find("rope_type") : map.find("type");
  if (type == map.end()) return false;
  if (type->second == std::variant<double, std::string>("default")) return true;
  if (type->second != std::variant<double, std::string>("llama3")) return false;
  const auto number = [&](const char* name) {
    const auto entry = map.find(name);
    const double* x = entry == map.end() ? nullptr : std::get_if<double>(&entry->second);
    return x != nullptr && std::isfinite(*x) ? *x : 0;
  };
  return number("factor") > 0 && number("low_freq_factor") > 0 &&
         number("high_freq_factor") > number("low_freq_factor") && number("original_max_position_embeddings") > 0;
}

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  const int64_t sub = options.integer64("a2ats_sub_dim"),
                entries = int64_t{1} << options.integer("a2ats_codebook_bits");
  const int64_t runs = shape.dim_k / sub;
  rules.that(shape.dim_k % 2 == 0, "head_dim", shape.dim_k, "even numbers");
  rules.that(shape.dim_k % sub == 0, "a2ats_sub_dim", fmt::format("divisors of head_dim {}", shape.dim_k));
  rules.that(shape.dim_k % sub != 0 || shape.dim_v % sub == 0, "a2ats_sub_dim",
             fmt::format("divisors of {}, the channels of a value", shape.dim_v));
  if (rules.shape("a2ats_query_h", {{sub, sub}, {runs, sub, sub}})) {
    rules.that(are_metrics(std::get<ArrayValue>(options.value("a2ats_query_h")), sub), "a2ats_query_h",
               "symmetric positive matrices");
  }
  rules.shape("value_codebook", {{entries, sub}});
  if (rules.shape("a2ats_codebook", {{entries, sub}, {runs, entries, sub}, {2, entries, sub}})) {
    const std::vector<int64_t>& given = std::get<ArrayValue>(options.value("a2ats_codebook")).shape;
    const bool with_values = options.has_value("value_codebook"), pair = given.size() == 3 && given[0] == 2;
    rules.that(!pair || runs != 2 || with_values, "a2ats_codebook",
               "with two runs of channels a value_codebook too: [2][..][..] could mean either");
    rules.that(!pair || runs == 2 || !with_values, "value_codebook",
               "none beside an a2ats_codebook of keys and values");
  }
  if (options.has_value("a2ats_rope_scaling")) {
    rules.that(is_scaling(std::get<MapValue>(options.value("a2ats_rope_scaling"))), "a2ats_rope_scaling",
               "rope_type default, or llama3 with factor, low_freq_factor, a larger high_freq_factor and "
               "original_max_position_embeddings above 0");
  }
  return rules.broken();
}

}  // namespace

extern const MethodDef method_a2ats = {
    .name = "a2ats",
    .family = "hybrid",
    .title =
        "A2ATS: Retrieval-Based KV Cache Reduction via Windowed Rotary Position Embedding and Query-Aware Vector "
        "Quantization",
    .paper = "2502.12665",
    .summary = "far keys without their rotation and values in codes of a learned book, newest rows exact",
    .options = kOptions,
    .capabilities = {.needs_rope = true},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "A2ATSKVCache",
    .options_struct = "A2ATSOptions",
};

}  // namespace veloxquant
