// What everything that is timed computes on: one layer's geometry, and queries, keys and values of Gaussian numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "veloxquant/types.h"

namespace veloxquant::bench {

inline constexpr int kKvHeads = 8;
inline constexpr int kGroup = 4;  ///< query heads per kv head
inline constexpr int kQHeads = kKvHeads * kGroup;
inline constexpr int kPrefillQueries = 256;

enum class Op { decode, prefill, encode };
constexpr const char* to_string(Op op) {
  return op == Op::decode ? "decode" : op == Op::prefill ? "prefill" : "encode";
}
constexpr int queries_of(Op op) { return op == Op::prefill ? kPrefillQueries : 1; }

constexpr LayerShape layer_shape(int head_dim, DType input = DType::f32) {
  return {.kv_heads = kKvHeads, .q_heads = kQHeads, .dim_k = head_dim, .dim_v = head_dim, .layer = 0, .input = input};
}

/// Rows of any number of tokens: token t has row t % kPeriod, and no time depends on the repetition. Decode and prefill
/// attend over `tokens` stored rows and the rows of their own call.
struct Workload {
  static constexpr int kPeriod = 1024;
  /// Tokens of one append; calls of this many tokens or fewer never wrap around the period.
  static constexpr int kChunk = kPrefillQueries;

  explicit Workload(int head_dim);

  /// K or V of `count` tokens from token `first` on.
  Tensor rows(Side side, int first, int count) const;
  Tensor rows_f16(Side side, int first, int count) const;
  Tensor queries(int count) const { return Tensor::bshd(q.data(), DType::f32, 1, count, kQHeads, dim); }
  /// Row of one token and kv head.
  const float* row(Side side, int token, int head) const;

  int dim;
  std::vector<float> q;             ///< [kPrefillQueries][kQHeads][dim]
  std::vector<float> kv[2];         ///< by side: [kPeriod][kKvHeads][dim]
  std::vector<uint16_t> kv_f16[2];  ///< the same in fp16
};

}  // namespace veloxquant::bench
