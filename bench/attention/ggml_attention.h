// The yardstick of other people's work: ggml's flash attention on the processor, over caches of its own types.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "contest.h"
#include "huge_buffer.h"
#include "workload.h"

namespace veloxquant::bench {

enum class GgmlType { f16, q8_0, q4_0 };
inline constexpr GgmlType kGgmlTypes[] = {GgmlType::f16, GgmlType::q8_0, GgmlType::q4_0};
constexpr const char* to_string(GgmlType type) {
  return type == GgmlType::f16 ? "f16" : type == GgmlType::q8_0 ? "q8_0" : "q4_0";
}

enum class GgmlLayout {
  contiguous,  ///< [head][token][dim]: the best that ggml can be given
  interleaved  ///< [token][head][dim], read through a view: what llama.cpp gives it
};
inline constexpr GgmlLayout kGgmlLayouts[] = {GgmlLayout::contiguous, GgmlLayout::interleaved};
constexpr const char* to_string(GgmlLayout layout) {
  return layout == GgmlLayout::contiguous ? "contiguous" : "interleaved";
}

/// "0.25.3"
std::string ggml_version_text();

/// Attention over rows [0, tokens + queries) of the first `kv_heads` heads; causal where there are several queries.
/// Graphs are built and planned before the first call.
class GgmlAttention final : public Contestant {
 public:
  GgmlAttention(const Workload& workload, GgmlType type, GgmlLayout layout, int tokens, int queries, int kv_heads,
                size_t rotating_bytes);
  ~GgmlAttention() override;
  void use_threads(int threads) override;
  void call() override;
  int copies() const override;

  size_t bytes() const;                      ///< of keys and values of one copy
  const std::vector<float>& output() const;  ///< [queries][kv_heads * kGroup][dim]

 private:
  struct Graphs;
  std::unique_ptr<Graphs> graphs_;
};

}  // namespace veloxquant::bench
