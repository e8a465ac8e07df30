// A2ATS (arXiv:2502.12665): beyond a window of exact rows, keys are coded without their rotary embedding and all stand
// at one constant distance from the query, so that one codebook serves every position; codes minimise the error of
// logits where the metric of the queries is known.
//
// bytes per far row, kv head and side: ceil(dim / sub_dim * codebook_bits / 8); the codebooks once
#include <fmt/format.h>

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
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  const int64_t sub = options.integer64("a2ats_sub_dim"),
                entries = int64_t{1} << options.integer("a2ats_codebook_bits");
  const int64_t runs = shape.dim_k / sub;
  rules.that(shape.dim_k % 2 == 0, "head_dim", shape.dim_k, "even numbers");
  rules.that(shape.dim_k % sub == 0, "a2ats_sub_dim", fmt::format("divisors of head_dim {}", shape.dim_k));
  rules.shape("a2ats_query_h", {{sub, sub}, {runs, sub, sub}});
  rules.shape("a2ats_codebook", {{entries, sub}, {runs, entries, sub}, {2, entries, sub}});
  rules.shape("value_codebook", {{entries, sub}});
  if (options.has_value("a2ats_codebook") && runs == 2 && !options.has_value("value_codebook")) {
    const std::vector<int64_t>& given = std::get<ArrayValue>(options.value("a2ats_codebook")).shape;
    rules.that(given.size() != 3, "a2ats_codebook",
               "with two runs of channels a value_codebook too: [2][..][..] could mean either");
  }
  if (options.has_value("a2ats_rope_scaling")) {
    const MapValue& scaling = std::get<MapValue>(options.value("a2ats_rope_scaling"));
    const auto type = scaling.contains("rope_type") ? scaling.find("rope_type") : scaling.find("type");
    const bool known = type != scaling.end() && (type->second == std::variant<double, std::string>("default") ||
                                                 type->second == std::variant<double, std::string>("llama3"));
    rules.that(known, "a2ats_rope_scaling", "rope_type default or llama3");
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
    .capabilities = {},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "A2ATSKVCache",
    .options_struct = "A2ATSOptions",
};

}  // namespace veloxquant
