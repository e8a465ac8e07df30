#include "codec/map/dense.h"

#include <algorithm>

#include <Eigen/Dense>

#include "kernels/kernels.h"

namespace veloxquant {
namespace {

void apply(const float* columns, int in, int out, int n, const float* x, int64_t ldx, float* y, int64_t ldy) {
  if (x != y) return kernels::dense_map(n, in, out, x, ldx, columns, y, ldy);
  std::vector<float> row(static_cast<size_t>(in));
  for (int r = 0; r < n; ++r) {
    std::copy_n(x + r * ldx, in, row.data());
    kernels::dense_map(1, in, out, row.data(), in, columns, y + r * ldy, ldy);
  }
}

}  // namespace

DenseMatrix::DenseMatrix(int rows, int cols)
    : rows_(rows),
      cols_(cols),
      by_row_(static_cast<size_t>(rows) * static_cast<size_t>(cols)),
      by_column_(by_row_.size()) {}

void DenseMatrix::set(int row, int col, double entry) {
  by_row_[static_cast<size_t>(int64_t{row} * cols_ + col)] = static_cast<float>(entry);
  by_column_[static_cast<size_t>(int64_t{col} * rows_ + row)] = static_cast<float>(entry);
}

void DenseMatrix::multiply(int n, const float* x, int64_t ldx, float* y, int64_t ldy) const {
  apply(by_column_.data(), cols_, rows_, n, x, ldx, y, ldy);
}
void DenseMatrix::multiply_transposed(int n, const float* y, int64_t ldy, float* x, int64_t ldx) const {
  apply(by_row_.data(), rows_, cols_, n, y, ldy, x, ldx);
}

std::vector<double> haar_matrix(int dim, const Random& random, uint64_t first) {
  Eigen::MatrixXd gauss(dim, dim);
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j < dim; ++j) gauss(i, j) = random.normal(first++);
  }
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(gauss);
  const Eigen::MatrixXd q = qr.householderQ();
  std::vector<double> matrix;
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j < dim; ++j) matrix.push_back(qr.matrixQR()(j, j) < 0 ? -q(i, j) : q(i, j));
  }
  return matrix;
}

}  // namespace veloxquant
