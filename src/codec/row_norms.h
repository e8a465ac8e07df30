// Lengths of rows as codecs store them: fp16, clamped to its range.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/kernels.h"
#include "veloxquant/types.h"

namespace veloxquant {

inline constexpr float kLeastNorm = 1e-12f;  ///< shorter rows are stored as zero
inline constexpr float kLargestHalf = 65504;
inline constexpr int kNormRows = 16;  ///< most rows at a time

/// Of up to kNormRows rows, exact and as fp16.
struct RowNorms {
  explicit RowNorms(const RowsView& rows) {
    kernels::inner_products(rows.x, rows.ld, rows.x, rows.ld, rows.rows, rows.dim, exact);
    for (int r = 0; r < rows.rows; ++r) {
      exact[r] = std::sqrt(exact[r]);
      rounded[r] = std::min(exact[r], kLargestHalf);
    }
    kernels::from_f32(rounded, rows.rows, DType::f16, stored);
    kernels::to_f32(stored, rows.rows, DType::f16, rounded);
    for (int r = 0; r < rows.rows; ++r) {
      if (is_zero(r)) stored[r] = 0;
    }
  }
  bool is_zero(int r) const { return exact[r] < kLeastNorm || rounded[r] == 0; }

  float exact[kNormRows], rounded[kNormRows];
  uint16_t stored[kNormRows];
};

}  // namespace veloxquant
