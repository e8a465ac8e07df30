// Randomised Hadamard transforms of rows. Sums have one defined order on every instruction set: the core, column after
// column, then butterflies of growing stride. Factors of 1 and -1 make products exact, so a fused multiply-add rounds
// once, as the addition does.
#include <algorithm>

#include "core/check.h"
#include "kernels/kernels.h"
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hadamard.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace veloxquant::kernels::HWY_NAMESPACE {

/// Of a row that stay in registers at once.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
inline constexpr int kMostVectors = 16;
#else
inline constexpr int kMostVectors = 8;
#endif

#if HWY_TARGET != HWY_SCALAR
/// The lanes kStride away.
template <int kStride>
HWY_INLINE VF32 partner(VF32 v) {
  if constexpr (kStride == 1) {
    return hn::Shuffle2301(v);
  } else if constexpr (kStride == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (kStride == 4) {
    return hn::SwapAdjacentBlocks(v);
  } else {
    return hn::ConcatLowerUpper(F32(), v, v);
  }
}

/// 1, and -1 in the upper lane of each pair of a butterfly.
HWY_INLINE VF32 signs(int stride) {
  HWY_ALIGN float sign[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) sign[lane] = lane & stride ? -1.0f : 1.0f;
  return hn::Load(F32(), sign);
}
#endif

/// The butterflies inside vectors, pass after pass.
template <int kStride, int kVectors>
HWY_INLINE void lane_butterflies([[maybe_unused]] VF32 (&v)[kVectors]) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kStride < kLanes) {
    const VF32 sign = signs(kStride);
    for (int i = 0; i < kVectors; ++i) v[i] = hn::MulAdd(v[i], sign, partner<kStride>(v[i]));
    lane_butterflies<2 * kStride>(v);
  }
#endif
}

/// Those between vectors.
template <int kVectors>
HWY_INLINE void vector_butterflies(VF32 (&v)[kVectors]) {
  for (int stride = 1; stride < kVectors; stride *= 2) {
    for (int i = 0; i < kVectors; ++i) {
      if (i & stride) continue;
      const VF32 low = v[i], high = v[i + stride];
      v[i] = hn::Add(low, high);
      v[i + stride] = hn::Sub(low, high);
    }
  }
}

/// Two halves of `stride` values each, in place.
HWY_INLINE void butterflies(int stride, float* low, float* high) {
  const F32 d;
  int i = 0;
  for (; i + kLanes <= stride; i += kLanes) {
    const VF32 a = hn::LoadU(d, low + i), b = hn::LoadU(d, high + i);
    hn::StoreU(hn::Add(a, b), d, low + i);
    hn::StoreU(hn::Sub(a, b), d, high + i);
  }
  if (i == stride) return;
  const int rest = stride - i;
  const VF32 a = load_n(d, low + i, rest), b = load_n(d, high + i, rest);
  store_n(hn::Add(a, b), d, low + i, rest);
  store_n(hn::Sub(a, b), d, high + i, rest);
}

/// to[i] = from[i] * factor[i]; `to` may be `from`.
HWY_INLINE void multiply(const float* from, const float* factor, int n, float* to) {
  const F32 d;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, from + i), hn::LoadU(d, factor + i)), d, to + i);
  for (; i < n; ++i) to[i] = from[i] * factor[i];
}

/// All rounds on a row of kVectors vectors, in registers.
template <int kVectors, bool kBack>
HWY_INLINE void rotate_in_registers(const HadamardRounds& map, const float* x, float* y) {
  const F32 d;
  VF32 v[kVectors];
  for (int i = 0; i < kVectors; ++i) v[i] = hn::LoadU(d, x + i * kLanes);
  for (int round = 0; round < map.rounds; ++round) {
    const float* factor = map.factors + (kBack ? round : map.rounds - 1 - round) * kVectors * kLanes;
    const auto multiply = [&] {
      for (int i = 0; i < kVectors; ++i) v[i] = hn::Mul(v[i], hn::LoadU(d, factor + i * kLanes));
    };
    if (!kBack) multiply();
    lane_butterflies<1>(v);
    vector_butterflies(v);
    if (kBack) multiply();
  }
  for (int i = 0; i < kVectors; ++i) hn::StoreU(v[i], d, y + i * kLanes);
}

/// H y in place for dim = kMostVectors vectors times a power of two.
HWY_INLINE void hadamard_of_blocks(int dim, float* y) {
  const F32 d;
  constexpr int kBlock = kMostVectors * kLanes;
  for (int block = 0; block < dim; block += kBlock) {
    VF32 v[kMostVectors];
    for (int i = 0; i < kMostVectors; ++i) v[i] = hn::LoadU(d, y + block + i * kLanes);
    lane_butterflies<1>(v);
    vector_butterflies(v);
    for (int i = 0; i < kMostVectors; ++i) hn::StoreU(v[i], d, y + block + i * kLanes);
  }
  for (int stride = kBlock; stride < dim; stride *= 2) {
    for (int base = 0; base < dim; base += 2 * stride) butterflies(stride, y + base, y + base + stride);
  }
}

/// block = C block, C given column by column. In vectors of four, of which every core is a multiple: loads then never
/// span two earlier stores, for which they would wait.
using Quad = hn::CappedTag<float, 4>;
inline constexpr int kQuad = static_cast<int>(hn::MaxLanes(Quad()));

template <int kCore>
HWY_INLINE void apply_core(const float* columns, float* block) {
  const Quad d;
  hn::Vec<Quad> sum[kCore / kQuad];
  for (auto& s : sum) s = hn::Zero(d);
  for (int j = 0; j < kCore; ++j, columns += kCore) {
    const auto value = hn::Set(d, block[j]);
    for (int i = 0; i < kCore; i += kQuad) {
      sum[i / kQuad] = hn::MulAdd(hn::LoadU(d, columns + i), value, sum[i / kQuad]);
    }
  }
  for (int i = 0; i < kCore; i += kQuad) hn::StoreU(sum[i / kQuad], d, block + i);
}

/// `stride` is a multiple of four.
HWY_INLINE void butterflies_of_quads(int stride, float* low, float* high) {
  const Quad d;
  for (int i = 0; i < stride; i += kQuad) {
    const auto a = hn::LoadU(d, low + i), b = hn::LoadU(d, high + i);
    hn::StoreU(hn::Add(a, b), d, low + i);
    hn::StoreU(hn::Sub(a, b), d, high + i);
  }
}

/// H y in place for a row of any order.
template <int kCore>
HWY_INLINE void hadamard(int dim, const float* columns, float* y) {
  if (kCore == 1 && dim >= kMostVectors * kLanes) return hadamard_of_blocks(dim, y);
  if constexpr (kCore > 1) {
    for (int block = 0; block < dim; block += kCore) apply_core<kCore>(columns, y + block);
  }
  for (int stride = kCore; stride < dim; stride *= 2) {
    for (int base = 0; base < dim; base += 2 * stride) {
      if (kCore > 1) {
        butterflies_of_quads(stride, y + base, y + base + stride);
      } else {
        butterflies(stride, y + base, y + base + stride);
      }
    }
  }
}

template <int kCore, bool kBack>
HWY_NOINLINE void rotate_rows(HadamardRounds map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) {
  const int dim = map.dim;
  for (int r = 0; r < rows; ++r) {
    const float* from = x + r * ldx;
    float* to = y + r * ldy;
    for (int round = 0; round < map.rounds; ++round, from = to) {
      const float* factor = map.factors + int64_t{kBack ? round : map.rounds - 1 - round} * dim;
      if (kBack) {
        if (from != to) std::copy_n(from, dim, to);
        hadamard<kCore>(dim, map.rows, to);
        multiply(to, factor, dim, to);
      } else {
        multiply(from, factor, dim, to);
        hadamard<kCore>(dim, map.columns, to);
      }
    }
  }
}

/// dim is kVectors vectors.
template <int kVectors, bool kBack>
HWY_NOINLINE void rotate_vectors(HadamardRounds map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) {
  for (int r = 0; r < rows; ++r) rotate_in_registers<kVectors, kBack>(map, x + r * ldx, y + r * ldy);
}

/// Channels of kLanes rows, a row a lane: orders that do not fill vectors waste no lane then.
inline constexpr int kMostTurned = 512;

template <int kCore>
HWY_INLINE void apply_core_to_channels(const float* columns, float* block) {
  const F32 d;
  VF32 sum[kCore];
  for (VF32& s : sum) s = hn::Zero(d);
  for (int j = 0; j < kCore; ++j, columns += kCore) {
    const VF32 value = hn::Load(d, block + j * kLanes);
    for (int i = 0; i < kCore; ++i) sum[i] = hn::MulAdd(hn::Set(d, columns[i]), value, sum[i]);
  }
  for (int i = 0; i < kCore; ++i) hn::Store(sum[i], d, block + i * kLanes);
}

template <int kCore>
HWY_INLINE void hadamard_of_channels(int dim, const float* columns, float* tile) {
  for (int block = 0; block < dim; block += kCore) apply_core_to_channels<kCore>(columns, tile + block * kLanes);
  for (int stride = kCore; stride < dim; stride *= 2) {
    for (int base = 0; base < dim; base += 2 * stride) {
      butterflies(stride * kLanes, tile + base * kLanes, tile + (base + stride) * kLanes);
    }
  }
}

HWY_INLINE void multiply_channels(const float* factor, int dim, float* tile) {
  const F32 d;
  for (int c = 0; c < dim; ++c, tile += kLanes) hn::Store(hn::Mul(hn::Load(d, tile), hn::Set(d, factor[c])), d, tile);
}

template <int kCore, bool kBack>
HWY_NOINLINE void rotate_channels(HadamardRounds map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) {
  HWY_ALIGN float tile[kMostTurned * kLanes];
  if (rows < kLanes) std::fill_n(tile, map.dim * kLanes, 0.0f);
  for (int r = 0; r < rows; r += kLanes) {
    const int count = std::min(rows - r, kLanes);
    kernels::transpose(count, map.dim, x + r * ldx, ldx, tile, kLanes);
    for (int round = 0; round < map.rounds; ++round) {
      const float* factor = map.factors + (kBack ? round : map.rounds - 1 - round) * map.dim;
      if (!kBack) multiply_channels(factor, map.dim, tile);
      hadamard_of_channels<kCore>(map.dim, kBack ? map.rows : map.columns, tile);
      if (kBack) multiply_channels(factor, map.dim, tile);
    }
    kernels::transpose(map.dim, count, tile, kLanes, y + r * ldy, ldy);
  }
}

/// Few rows one by one, more in lanes.
template <int kCore, bool kBack>
HWY_INLINE void rotate_core(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) {
  const int left = rows % kLanes;
  const int in_lanes = map.dim > kMostTurned ? 0 : left < kLanes / 2 ? rows - left : rows;
  if (in_lanes > 0) rotate_channels<kCore, kBack>(map, in_lanes, x, ldx, y, ldy);
  rotate_rows<kCore, kBack>(map, rows - in_lanes, x + in_lanes * ldx, ldx, y + in_lanes * ldy, ldy);
}

template <bool kBack>
HWY_INLINE void rotate_any(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) {
  VQ_CHECK(map.rounds >= 1 && (map.core == 1 || map.core == 12 || map.core == 20 || map.core == 28));
  if (map.core == 12) return rotate_core<12, kBack>(map, rows, x, ldx, y, ldy);
  if (map.core == 20) return rotate_core<20, kBack>(map, rows, x, ldx, y, ldy);
  if (map.core == 28) return rotate_core<28, kBack>(map, rows, x, ldx, y, ldy);
  const int vectors = map.dim / kLanes;
  if (vectors == 1) return rotate_vectors<1, kBack>(map, rows, x, ldx, y, ldy);
  if (vectors == 2) return rotate_vectors<2, kBack>(map, rows, x, ldx, y, ldy);
  if (vectors == 4) return rotate_vectors<4, kBack>(map, rows, x, ldx, y, ldy);
  if (vectors == 8) return rotate_vectors<8, kBack>(map, rows, x, ldx, y, ldy);
  if (vectors == kMostVectors) return rotate_vectors<kMostVectors, kBack>(map, rows, x, ldx, y, ldy);
  rotate_rows<1, kBack>(map, rows, x, ldx, y, ldy);
}

void rotate(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) {
  rotate_any<false>(map, rows, x, ldx, y, ldy);
}
void rotate_back(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) {
  rotate_any<true>(map, rows, x, ldx, y, ldy);
}

}  // namespace veloxquant::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace veloxquant::kernels {

HWY_EXPORT(rotate);
HWY_EXPORT(rotate_back);

void rotate(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) {
  HWY_DYNAMIC_DISPATCH(rotate)(map, rows, x, ldx, y, ldy);
}
void rotate_back(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) {
  HWY_DYNAMIC_DISPATCH(rotate_back)(map, rows, x, ldx, y, ldy);
}

}  // namespace veloxquant::kernels
#endif  // HWY_ONCE
