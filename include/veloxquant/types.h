// Plain types shared by every part: element types, sides, positions, shapes, views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace veloxquant {

/// True absolute position of a token in its sequence (the RoPE position).
enum class Pos : int32_t {};
/// Ordinal of a stored row of one (sequence, kv head). Never used where a position is meant.
enum class Row : int32_t {};

constexpr int32_t to_int(Pos p) { return static_cast<int32_t>(p); }
constexpr int32_t to_int(Row r) { return static_cast<int32_t>(r); }

enum class Side : uint8_t { key, value };
inline constexpr Side kSides[] = {Side::key, Side::value};
constexpr std::string_view to_string(Side side) { return side == Side::key ? "key" : "value"; }

enum class DType : uint8_t { f16, bf16, f32 };
constexpr size_t size_of(DType type) { return type == DType::f32 ? 4 : 2; }
constexpr std::string_view to_string(DType type) {
  return type == DType::f16 ? "f16" : type == DType::bf16 ? "bf16" : "f32";
}

/// What a call is, told by the host: one-shot methods are exact under chunked prefill only with it.
/// `automatic`: more than one token is a prefill chunk that ends here, one token is a decode step.
enum class Phase : uint8_t { automatic, prefill_more, prefill_last, decode };

/// Arithmetic of attention on packed codes: fp32; integers with queries and weights of 15 bits (relative error of an
/// output about 1e-4), or of 7 bits.
enum class Arithmetic : uint8_t { float32, two_term, int8 };

/// Half-open range of rows, units or tokens.
struct Range {
  int begin = 0, end = 0;
  constexpr int size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
};

struct RopeSpec;

/// Geometry of one attention layer. Query head h reads kv head h / (q_heads / kv_heads).
struct LayerShape {
  int kv_heads = 1;
  int q_heads = 1;  ///< 0: each call's own, a multiple of kv_heads
  int dim_k = 128;
  int dim_v = 128;
  int layer = 0;             ///< raw index in the model; seeds are config seed + layer
  DType input = DType::f32;  ///< element type of the K and V that will be appended
  /// Values are the first dim_v channels of the keys (multi-head latent attention): keys alone are stored, and what is
  /// given as values is not read.
  bool value_is_key_prefix = false;
  const RopeSpec* rope = nullptr;  ///< how keys and queries are rotated (rope.h), if known; outlives the caches
};

/// Read-only view of a tensor [batch][tokens][heads][dim]; `dim` is contiguous, strides count elements.
struct Tensor {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int batch = 1, tokens = 0, heads = 1, dim = 0;
  int64_t stride_batch = 0, stride_token = 0, stride_head = 0;

  /// Dense [batch][heads][tokens][dim], the order of the serving protocol.
  static Tensor bhsd(const void* data, DType dtype, int batch, int heads, int tokens, int dim) {
    const int64_t head = int64_t{tokens} * dim;
    return {data, dtype, batch, tokens, heads, dim, head * heads, dim, head};
  }
  /// Dense [batch][tokens][heads][dim], the order in which most engines compute K and V.
  static Tensor bshd(const void* data, DType dtype, int batch, int tokens, int heads, int dim) {
    const int64_t token = int64_t{heads} * dim;
    return {data, dtype, batch, tokens, heads, dim, token * tokens, token, dim};
  }
};

/// fp32 rows of one head: x[row * ld + channel].
struct RowsView {
  const float* x = nullptr;
  int64_t ld = 0;
  int rows = 0;
  int dim = 0;
};

}  // namespace veloxquant
