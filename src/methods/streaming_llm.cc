// StreamingLLM (arXiv:2309.17453): the first tokens, which attract the attention nobody needs, and the newest stay.
//
// Rows: positions < stream_n_sink and those among the newest stream_window_size. Positions stay true; with
// stream_positions=cache sinks are scored at the distance they would have if nothing had been dropped in between, so
// that no distance exceeds what the model was trained on.
//
// bytes: (stream_n_sink + stream_window_size) rows of 2 (dim_k + dim_v) per kv head, however long the text
#include "methods/eviction.h"
#include "veloxquant/rope.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("stream_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, kept for ever"),
    integer_option("stream_window_size", "window", 512, 1, 1 << 30, "newest rows kept, sinks not counted"),
    choice_option("stream_positions", "positions", {"true", "cache"},
                  "positions of sinks: their own, or those inside the cache (needs the host's RoPE frequencies)"),
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  if (options.choice("stream_positions") == "cache" && !shape.rope) {
    return {"stream_positions: got cache, which needs the model's RoPE frequencies, and the host gives none"};
  }
  return {};
}

Recipe build(const Options& options, const BuildContext& context) {
  Recipe recipe = eviction::exact_rows(context);
  recipe.sink_window = {.sinks = options.integer("stream_n_sink"),
                        .window = options.integer("stream_window_size"),
                        .cache_positions = options.choice("stream_positions") == "cache"};
  return recipe;
}

}  // namespace

extern const MethodDef method_streaming_llm = {
    .name = "streaming_llm",
    .family = "eviction",
    .title = "Efficient Streaming Language Models with Attention Sinks",
    .paper = "2309.17453",
    .summary = "keeps the first tokens and the newest; texts without end",
    .options = kOptions,
    .capabilities = {.trimmable = false},
    .telemetry = {{"tokens_in_window", "rows of sequence 0, kv head 0",
                   [](const CacheStats& s) { return static_cast<double>(s.rows_first); }},
                  {"tokens_kept", "the same", [](const CacheStats& s) { return static_cast<double>(s.rows_first); }},
                  {"tokens_seen", "tokens of all sequences and kv heads",
                   [](const CacheStats& s) { return static_cast<double>(s.tokens_seen); }},
                  {"stream_kept_bytes", "kept rows at 2 bytes an element", eviction::kept_bytes},
                  {"full_seq_bytes", "all rows at 2 bytes an element", eviction::full_bytes},
                  {"streaming_ratio", "full_seq_bytes over stream_kept_bytes; 1 when empty", eviction::ratio}},
    .check = check,
    .build = build,
    .chooses_rows = true,
    .cache_class = "StreamingLLMKVCache",
    .options_struct = "StreamingLLMOptions",
};

}  // namespace veloxquant
