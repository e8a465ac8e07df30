#include "codec/map/dense.h"

#include <algorithm>

#include <Eigen/Dense>

namespace veloxquant {
namespace {

/// y_i = sum over j ascending of columns[j][i] * x_j: by columns, so that i runs along vector lanes.
void apply(const float* columns, int in, int out, int n, const float* x, int64_t ldx, float* y, int64_t ldy) {
  std::vector<float> copy(x == y ? static_cast<size_t>(in) : 0);
  for (int r = 0; r < n; ++r) {
    const float* input = x + r * ldx;
    if (x == y) input = std::copy_n(input, in, copy.data()) - in;
    float* __restrict sum = y + r * ldy;
    std::fill_n(sum, out, 0.0f);
    for (int j = 0; j < in; ++j) {
      const float factor = input[j];
      const float* __restrict column = columns + static_cast<int64_t>(j) * out;
      for (int i = 0; i < out; ++i) sum[i] += column[i] * factor;
    }
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
