// Rows times a dense matrix, for encoders: products and sums are rounded one by one and added in ascending order, so
// the bits are equal on every instruction set.
#include "kernels/kernels.h"
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense_map.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace veloxquant::kernels::HWY_NAMESPACE {

inline constexpr int kRows = 4;                  // that share a column in registers
inline constexpr int kVectors = kRegisters / 8;  // of outputs of each of them

/// kCount vectors of outputs of kHeight rows; with `lanes`, one vector of so many.
template <int kHeight, int kCount, bool kCut = false>
HWY_INLINE void map_block(int in, int out, const float* x, int64_t ldx, const float* columns, float* y, int64_t ldy,
                          int lanes = 0) {
  const F32 d;
  VF32 sum[kHeight][kCount];
  for (auto& row : sum) {
    for (VF32& s : row) s = hn::Zero(d);
  }
  for (int j = 0; j < in; ++j, columns += out) {
    VF32 column[kCount];
    for (int v = 0; v < kCount; ++v) {
      column[v] = kCut ? load_n(d, columns, lanes) : hn::LoadU(d, columns + v * kLanes);
    }
    for (int r = 0; r < kHeight; ++r) {
      const VF32 factor = hn::Set(d, x[r * ldx + j]);
      for (int v = 0; v < kCount; ++v) sum[r][v] = hn::Add(sum[r][v], hn::Mul(column[v], factor));
    }
  }
  for (int r = 0; r < kHeight; ++r, y += ldy) {
    for (int v = 0; v < kCount; ++v) {
      if (kCut) {
        store_n(sum[r][v], d, y, lanes);
      } else {
        hn::StoreU(sum[r][v], d, y + v * kLanes);
      }
    }
  }
}

template <int kHeight>
HWY_INLINE void map_rows(int in, int out, const float* x, int64_t ldx, const float* columns, float* y, int64_t ldy) {
  int i = 0;
  for (; i + kVectors * kLanes <= out; i += kVectors * kLanes) {
    map_block<kHeight, kVectors>(in, out, x, ldx, columns + i, y + i, ldy);
  }
  for (; i + kLanes <= out; i += kLanes) map_block<kHeight, 1>(in, out, x, ldx, columns + i, y + i, ldy);
  if (i < out) map_block<kHeight, 1, true>(in, out, x, ldx, columns + i, y + i, ldy, out - i);
}

void dense_map(int rows, int in, int out, const float* x, int64_t ldx, const float* columns, float* y, int64_t ldy) {
  int r = 0;
  for (; r + kRows <= rows; r += kRows) map_rows<kRows>(in, out, x + r * ldx, ldx, columns, y + r * ldy, ldy);
  for (; r < rows; ++r) map_rows<1>(in, out, x + r * ldx, ldx, columns, y + r * ldy, ldy);
}

}  // namespace veloxquant::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace veloxquant::kernels {

HWY_EXPORT(dense_map);

void dense_map(int rows, int in, int out, const float* x, int64_t ldx, const float* columns, float* y, int64_t ldy) {
  HWY_DYNAMIC_DISPATCH(dense_map)(rows, in, out, x, ldx, columns, y, ldy);
}

}  // namespace veloxquant::kernels
#endif  // HWY_ONCE
