// Matrix products and transposition.
//
// multiply_accumulate keeps a block of c in registers: kRows rows times some vectors of n, b loaded as vectors, a
// broadcast. Every element of c is one chain of multiply-adds over k ascending that starts from the value in memory,
// whatever the block it falls into, so neither blocks, tails nor cutting k into several calls change a bit. The
// multiply-add is fused where the instruction set has one; instruction sets without it round twice.
#include <algorithm>

#include "kernels/kernels.h"
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matrix.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace veloxquant::kernels::HWY_NAMESPACE {

// --- multiply_accumulate -------------------------------------------------------------------------

struct Product {
  int k;
  const float* a;
  int64_t a_row, a_col;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
};

inline constexpr int kMaxRows = 6;

/// Most vectors of n beside `rows` rows: the sums, one row of b and one value of a stay in registers.
constexpr int max_vectors(int rows) {
  int vectors = 8;
  while (rows * vectors + vectors + 1 > kRegisters) vectors /= 2;
  return vectors;
}

/// One block in registers at row i, column j. With kTail the last vector has only `tail` lanes.
template <int kRows, int kVectors, bool kTail>
HWY_INLINE void multiply_block(const Product& p, int i, int j, int tail) {
  const F32 d;
  const auto load = [&](const float* x, int v) {
    return kTail && v == kVectors - 1 ? load_n(d, x + v * kLanes, tail) : hn::LoadU(d, x + v * kLanes);
  };
  float* c = p.c + i * p.ldc + j;
  VF32 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = load(c + r * p.ldc, v);
  }
  const float* a = p.a + i * p.a_row;
  const float* b = p.b + j;
  for (int k = 0; k < p.k; ++k, a += p.a_col, b += p.ldb) {
    VF32 row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = load(b, v);
    for (int r = 0; r < kRows; ++r) {
      const VF32 value = hn::Set(d, a[r * p.a_row]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(value, row[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + r * p.ldc + v * kLanes;
      if (kTail && v == kVectors - 1) {
        store_n(sum[r][v], d, to, tail);
      } else {
        hn::StoreU(sum[r][v], d, to);
      }
    }
  }
}

/// All n columns of kRows rows from row i.
template <int kRows, int kVectors = max_vectors(kRows)>
HWY_NOINLINE void multiply_rows(const Product& p, int i, int j, int n) {
  for (; j + kVectors * kLanes <= n; j += kVectors * kLanes) multiply_block<kRows, kVectors, false>(p, i, j, 0);
  if constexpr (kVectors > 1) {
    multiply_rows<kRows, kVectors / 2>(p, i, j, n);
  } else if (j < n) {
    multiply_block<kRows, 1, true>(p, i, j, n - j);
  }
}

void multiply_accumulate(int m, int n, int k, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb,
                         float* c, int64_t ldc) {
  static_assert(kMaxRows == 6);
  constexpr void (*kMultiplyRows[])(const Product&, int, int, int) = {
      nullptr,          multiply_rows<1>, multiply_rows<2>, multiply_rows<3>,
      multiply_rows<4>, multiply_rows<5>, multiply_rows<6>};
  const Product product{k, a, a_row, a_col, b, ldb, c, ldc};
  for (int i = 0; i < m;) {
    const int left = m - i;
    // Two blocks of about the same size serve 7 to 11 rows better than a full and a small one.
    const int rows = left <= kMaxRows ? left : left < 2 * kMaxRows ? (left + 1) / 2 : kMaxRows;
    kMultiplyRows[rows](product, i, 0, n);
    i += rows;
  }
}

// --- transpose -----------------------------------------------------------------------------------

#if HWY_TARGET != HWY_SCALAR
/// One vector of 128-bit blocks: block b is x[4 * b * ldx .. + 3].
HWY_INLINE VF32 load_blocks(const float* x, int64_t ldx) {
  const hn::FixedTag<float, 4> block;
#if HWY_MAX_BYTES == 64
  const hn::FixedTag<float, 8> half;
  return hn::Combine(F32(), hn::Combine(half, hn::LoadU(block, x + 12 * ldx), hn::LoadU(block, x + 8 * ldx)),
                     hn::Combine(half, hn::LoadU(block, x + 4 * ldx), hn::LoadU(block, x)));
#elif HWY_MAX_BYTES == 32
  return hn::Combine(F32(), hn::LoadU(block, x + 4 * ldx), hn::LoadU(block, x));
#else
  (void)ldx;
  return hn::LoadU(block, x);
#endif
}

/// kLanes rows of 4 columns: each 128-bit block of the vectors is a 4x4 transposition, stores are whole vectors.
HWY_INLINE void transpose_block(const float* x, int64_t ldx, float* y, int64_t ldy) {
  const F32 d;
  const hn::Repartition<uint64_t, F32> pairs;
  const VF32 a = load_blocks(x, ldx), b = load_blocks(x + ldx, ldx);
  const VF32 e = load_blocks(x + 2 * ldx, ldx), f = load_blocks(x + 3 * ldx, ldx);
  const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(d, a, b));
  const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(d, a, b));
  const auto ef_low = hn::BitCast(pairs, hn::InterleaveLower(d, e, f));
  const auto ef_high = hn::BitCast(pairs, hn::InterleaveUpper(d, e, f));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_low, ef_low)), d, y);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_low, ef_low)), d, y + ldy);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_high, ef_high)), d, y + 2 * ldy);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_high, ef_high)), d, y + 3 * ldy);
}
#endif

void transpose(int rows, int cols, const float* x, int64_t ldx, float* y, int64_t ldy) {
  int row = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; row + kLanes <= rows; row += kLanes) {
    int col = 0;
    for (; col + 4 <= cols; col += 4) transpose_block(x + row * ldx + col, ldx, y + col * ldy + row, ldy);
    for (; col < cols; ++col) {
      for (int r = row; r < row + kLanes; ++r) y[col * ldy + r] = x[r * ldx + col];
    }
  }
#endif
  for (int col = 0; col < cols; ++col) {
    for (int r = row; r < rows; ++r) y[col * ldy + r] = x[r * ldx + col];
  }
}

}  // namespace veloxquant::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace veloxquant::kernels {

HWY_EXPORT(multiply_accumulate);
HWY_EXPORT(transpose);

void multiply_accumulate(int m, int n, int k, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb,
                         float* c, int64_t ldc) {
  HWY_DYNAMIC_DISPATCH(multiply_accumulate)(m, n, k, a, a_row, a_col, b, ldb, c, ldc);
}
void transpose(int rows, int cols, const float* x, int64_t ldx, float* y, int64_t ldy) {
  HWY_DYNAMIC_DISPATCH(transpose)(rows, cols, x, ldx, y, ldy);
}

}  // namespace veloxquant::kernels
#endif  // HWY_ONCE
