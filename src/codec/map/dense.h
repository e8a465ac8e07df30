// Maps that are stored as a matrix: frame_dim * dim multiply-adds a row.
#pragma once

#include <cstdint>
#include <vector>

#include "core/philox.h"

namespace veloxquant {

class DenseMatrix {
 public:
  DenseMatrix(int rows, int cols);
  void set(int row, int col, double entry);

  int rows() const { return rows_; }
  int cols() const { return cols_; }
  /// y = M x for each of n rows, and x = M^T y; in place where M is square.
  void multiply(int n, const float* x, int64_t ldx, float* y, int64_t ldy) const;
  void multiply_transposed(int n, const float* y, int64_t ldy, float* x, int64_t ldx) const;

 private:
  int rows_, cols_;
  std::vector<float> by_row_, by_column_;
};

/// Haar-distributed orthogonal matrix [dim][dim] from the numbers [first, first + dim^2) of `random`: G has i.i.d. N(0,
/// 1) entries, G = Q R, and Q * diag(sign R_ii) is returned. Without the signs Q is not Haar distributed (Mezzadri,
/// "How to generate random matrices from the classical compact groups", 2007). In double.
std::vector<double> haar_matrix(int dim, const Random& random, uint64_t first);

}  // namespace veloxquant
