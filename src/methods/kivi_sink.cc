// KVSink's protection of sinks on KIVI (arXiv:2508.04257): rows of extreme magnitude stay exact and out of every range.
//
// Of all keys so far the n_sink_tokens whose norm, a mean over kv heads, is farthest from the median are copied to a
// pool when their unit is sealed, while the pool has room; they are never quantised and never leave it. Everything else
// is kivi. Sinks of many models have small keys, as the paper says; sink_signal=key_norm sees large ones alone.
//
// bytes: those of kivi, 4 a token for its norm, and the pool once: n_sink_tokens exact rows of both sides and all heads
// with their positions
#include "methods/kivi.h"

namespace veloxquant {
namespace {

std::vector<OptionSpec> options() {
  std::vector<OptionSpec> rows = kivi_options();
  rows.push_back(integer_option("n_sink_tokens", "n_sink", 5, 0, 1 << 30,
                                "rows that stay exact for ever, per sequence; 0: plain kivi"));
  rows.push_back(choice_option(
      "sink_signal", "", {"two_sided", "key_norm", "external"},
      "which rows: the keys whose norms are farthest from the median, the largest, or what the host says"));
  return rows;
}

Recipe build(const Options& options, const BuildContext& context) {
  Recipe recipe = kivi_recipe(options, context);
  const std::string& name = options.choice("sink_signal");
  const auto signal = name == "two_sided"  ? SinkPool::Signal::two_sided
                      : name == "external" ? SinkPool::Signal::external
                                           : SinkPool::Signal::key_norm;
  const int capacity = options.integer("n_sink_tokens");
  if (capacity > 0) recipe.sink_pool = std::make_shared<const SinkPool>(capacity, signal);
  return recipe;
}

std::vector<Telemetry> telemetry() {
  std::vector<Telemetry> rows = kivi_telemetry();
  rows.push_back({"sink_fp16_bytes", "exact rows of the pool and their positions",
                  [](const CacheStats& s) { return static_cast<double>(s.pool_bytes + s.pool_position_bytes); }});
  return rows;
}

}  // namespace

extern const MethodDef method_kivi_sink = {
    .name = "kivi_sink",
    .family = "quantization",
    .title =
        "KVSink: Understanding and Enhancing the Preservation of Attention Sinks in KV Cache Quantization for LLMs",
    .paper = "2508.04257",
    .summary = "kivi, with the rows of extreme magnitude exact and outside every range",
    .options = options(),
    .capabilities = {.chunk_invariant = false},
    .telemetry = telemetry(),
    .check = {},
    .build = build,
    .cache_class = "SinkProtectedKVCache",
    .options_struct = "KIVIOptions",
    .bits_option = "bit_width_inlier",
    .coordinator = "SinkSource",
};

}  // namespace veloxquant
