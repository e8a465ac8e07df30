// turboquant_rvq - the default method: two-stage scalar quantisation of keys on the rotation of TurboQuant
// (arXiv:2504.19874; the second stage has no paper of its own).
//
//   k = gamma * u, u = rotated unit row; every coordinate of sqrt(D) * u is nearly N(0, 1)
//   joint: one Lloyd-Max table of 2b bits, its index cut in a high and a low half of b bits
//   matched, laplace: a table of b bits, then a second one for what the first left over
//
// bytes per token and kv head: keys 2 * ceil(dim_k * b / 8) + 2; values exact, or by value_codec: int8 dim_v + 2,
// turboquant_mse ceil(dim_v * b / 8) + 2.
#include "veloxquant/codecs.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

constexpr uint32_t kKeyStream = 0, kValueStream = 1;

const std::vector<OptionSpec> kOptions = {
    integer_option("bit_width_inlier", "bits", 2, 1, 4, "bits of a key code in each of the two stages"),
    integer_option("rotation_rounds", "rounds", 2, 1, 4, "rounds of random signs and Hadamard transform"),
    choice_option("residual_codebook", "codebook", {"joint", "matched", "laplace"},
                  "second stage: low half of one table, table of the true residual, table of a Laplace density"),
    {.name = "residual_scale",
     .alias = {},
     .type = OptionType::real,
     .def = {},
     .min = 1e-6,
     .max = 1e6,
     .choices = {},
     .meaning = "scale of the Laplace density; implies residual_codebook = laplace; none: from the bits"},
    choice_option("norm_mode", "norm", {"paper", "lsq", "unbiased"},
                  "stored length of a row: its norm, that of least squares, that of unbiased logits"),
    choice_option("value_codec", "", {"exact", "int8", "turboquant_mse"}, "how values are stored"),
};

Stage2 second_stage(const Options& options) {
  const std::string& name = options.choice("residual_codebook");
  if (options.has_value("residual_scale") || name == "laplace") return Stage2::laplace;
  return name == "matched" ? Stage2::matched : Stage2::joint;
}

NormMode norm_mode(const Options& options) {
  const std::string& name = options.choice("norm_mode");
  return name == "lsq" ? NormMode::lsq : name == "unbiased" ? NormMode::unbiased : NormMode::paper;
}

std::shared_ptr<const Codec> value_codec(const Options& options, const BuildContext& context) {
  const std::string& name = options.choice("value_codec");
  const int dim = context.shape.dim_v;
  if (name == "exact") return raw_rows(context.store, dim);
  if (name == "int8") return int8_row(dim, context.role(Side::value));
  return lloyd_row({.dim = dim,
                    .bits = options.integer("bit_width_inlier"),
                    .norm = norm_mode(options),
                    .rotation = Rotation::haar,
                    .seed = context.seed,
                    .stream = kValueStream,
                    .role = context.role(Side::value)});
}

std::vector<std::string> check(const Options& options, const LayerShape&) {
  if (!options.has_value("residual_scale") || !options.explicitly_set("residual_codebook")) return {};
  if (options.choice("residual_codebook") == "laplace") return {};
  return {"residual_scale: only residual_codebook = laplace has a scale, got " + options.choice("residual_codebook")};
}

Recipe build(const Options& options, const BuildContext& context) {
  const LloydRow key = {.dim = context.shape.dim_k,
                        .bits = options.integer("bit_width_inlier"),
                        .stage2 = second_stage(options),
                        .laplace_scale = options.has_value("residual_scale") ? options.real("residual_scale") : 0,
                        .norm = norm_mode(options),
                        .rotation = Rotation::rht,
                        .rounds = options.integer("rotation_rounds"),
                        .seed = context.seed,
                        .stream = kKeyStream,
                        .role = context.role(Side::key)};
  return {.placement = direct(), .key = lloyd_row(key), .value = value_codec(options, context)};
}

}  // namespace

extern const MethodDef method_turboquant_rvq = {
    .name = "turboquant_rvq",
    .family = "quantization",
    .title = "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate, with a residual stage",
    .paper = "2504.19874",
    .summary = "keys rotated and quantised in two stages, values exact by default; the default method",
    .options = kOptions,
    .capabilities = {},
    .telemetry =
        {
            {"assigned_bits", "bits of a stage",
             [](const CacheStats& s) { return static_cast<double>(s.nominal_bits); }},
            {"compressed_key_bytes", "coded keys",
             [](const CacheStats& s) { return static_cast<double>(s.key.coded_bytes); }},
            {"fp16_key_bytes", "bytes of the keys in an fp16 cache",
             [](const CacheStats& s) { return static_cast<double>(s.key.fp16_bytes); }},
            {"used_bytes", "coded keys and stored values",
             [](const CacheStats& s) { return static_cast<double>(s.used_bytes); }},
        },
    .check = check,
    .build = build,
    .cache_class = "TurboQuantRVQKVCache",
    .bits_option = "bit_width_inlier",
};

}  // namespace veloxquant
