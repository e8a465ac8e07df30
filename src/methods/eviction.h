// What methods that choose rows have in common.
#pragma once

#include "veloxquant/codecs.h"
#include "veloxquant/registry.h"

namespace veloxquant::eviction {

inline OptionSpec query_source_option() {
  return choice_option(
      "query_source", "", {"auto", "true", "proxy"},
      "scores from the call's queries, or from its keys where none come; from queries alone; from keys "
      "alone, at once");
}

inline QuerySource query_source(const Options& options) {
  const std::string& name = options.choice("query_source");
  return name == "proxy" ? QuerySource::proxy : name == "true" ? QuerySource::true_queries : QuerySource::automatic;
}

/// Rows in their exact type, where nothing else says how they are stored.
inline Recipe exact_rows(const BuildContext& context) {
  Recipe recipe;
  recipe.placement = unsealed();
  recipe.key = raw_rows(context.store, context.shape.dim_k);
  recipe.value = raw_rows(context.store, context.shape.dim_v);
  return recipe;
}

inline double kept_bytes(const CacheStats& s) {
  return static_cast<double>(s.rows_kept) * static_cast<double>(s.kv_bytes_per_row);
}
inline double full_bytes(const CacheStats& s) {
  return static_cast<double>(s.tokens_seen) * static_cast<double>(s.kv_bytes_per_row);
}
inline double ratio(const CacheStats& s) { return s.rows_kept == 0 ? 1.0 : full_bytes(s) / kept_bytes(s); }

/// Telemetry of the original system's evictors; the name of the first entry is the method's own.
inline std::vector<Telemetry> telemetry(std::string_view kept_name) {
  return {{kept_name, "kept rows at 2 bytes an element", kept_bytes},
          {"full_seq_bytes", "all rows at 2 bytes an element", full_bytes},
          {"compression_ratio", "full_seq_bytes over kept bytes; 1 when nothing is stored", ratio},
          {"tokens_seen", "tokens of all sequences and kv heads",
           [](const CacheStats& s) { return static_cast<double>(s.tokens_seen); }},
          {"tokens_kept", "rows of sequence 0, kv head 0",
           [](const CacheStats& s) { return static_cast<double>(s.rows_first); }}};
}

inline constexpr Capabilities kCapabilities = {.trimmable = false, .chunk_invariant = false};

}  // namespace veloxquant::eviction
