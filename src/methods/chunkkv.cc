// ChunkKV (arXiv:2502.00299): tokens that stand together mean something together, so chunks of them are scored and kept
// as a whole; neighbouring layers choose alike and may share one choice.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8
#include <fmt/format.h>

#include "methods/eviction.h"
#include "methods/rules.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("chunkkv_budget", "budget", 512, 0, 1 << 30, "rows kept per kv head, sinks included"),
    integer_option("chunkkv_chunk_size", "chunk", 8, 1, 1 << 30, "rows of a chunk; 1: h2o"),
    integer_option("chunkkv_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped and in no chunk"),
    choice_option("chunkkv_score", "score", {"attn_mass", "key_norm", "window"}, "scores that are pooled over a chunk"),
    integer_option("chunkkv_reuse_layers", "reuse_layers", 1, 1, 1 << 16,
                   "neighbouring layers that share one choice; needs a whole model"),
    integer_option("chunkkv_grace", "grace", 16, 0, 1 << 30,
                   "newest rows, never dropped; shrinks where the budget is small"),
    real_option("chunkkv_decay", "decay", 0.98, 0, 1, "multiplies all scores once a token").above_min(),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.budget("chunkkv_budget", {"chunkkv_n_sink"});
  if (options.explicitly_set("chunkkv_grace")) {
    const int64_t budget = options.integer64("chunkkv_budget"), sinks = options.integer64("chunkkv_n_sink");
    const int64_t chunk = options.integer64("chunkkv_chunk_size");
    rules.that(options.integer64("chunkkv_grace") <= budget - sinks - chunk, "chunkkv_grace",
               fmt::format("at most chunkkv_budget {} - chunkkv_n_sink {} - chunkkv_chunk_size {}: a chunk has to go",
                           budget, sinks, chunk));
  }
  return rules.broken();
}

void plan(const Options& options, std::span<LayerPlan> layers) {
  const int block = options.integer("chunkkv_reuse_layers");
  if (block == 1) return;
  for (LayerPlan& layer : layers) {
    const std::string name = "block " + std::to_string(layer.index / block);
    layer.group = (layer.index % block == 0 ? "leader of " : "follower in ") + name;
  }
}

}  // namespace

extern const MethodDef method_chunkkv = {
    .name = "chunkkv",
    .family = "eviction",
    .title = "ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference",
    .paper = "2502.00299",
    .summary = "chunks of neighbouring rows are kept or dropped together",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("chunkkv_kept_bytes"),
    .check = check,
    .build = {},
    .chooses_rows = true,
    .cache_class = "ChunkKVCache",
    .options_struct = "ChunkKVOptions",
    .coordinator = "ChunkKVIndexReuseCoordinator",
    .plan = plan,
};

}  // namespace veloxquant
