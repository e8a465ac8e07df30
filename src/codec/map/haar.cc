// Haar rotation: G has i.i.d. N(0, 1) entries, G = Q R, rotation = Q * diag(sign R_ii). Without the signs Q is not Haar
// distributed (Mezzadri, "How to generate random matrices from the classical compact groups", 2007). Computed in double
// and rounded to fp32 once; D^2 multiply-adds a row.
#include <algorithm>
#include <vector>

#include <Eigen/Dense>

#include "codec/map/orthogonal_map.h"
#include "core/philox.h"

namespace veloxquant {
namespace {

class Haar final : public OrthogonalMap {
 public:
  Haar(int dim, uint64_t seed, uint32_t stream) : dim_(dim) {
    const Random random(seed, Purpose::rotation, stream);
    Eigen::MatrixXd gauss(dim, dim);
    uint64_t number = 0;
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) gauss(i, j) = random.normal(number++);
    }
    const Eigen::HouseholderQR<Eigen::MatrixXd> qr(gauss);
    Eigen::MatrixXd q = qr.householderQ();
    for (int j = 0; j < dim; ++j) {
      if (qr.matrixQR()(j, j) < 0) q.col(j) *= -1;
    }
    const size_t n = static_cast<size_t>(dim);
    rotation_.resize(n * n);
    transposed_.resize(n * n);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        const float entry = static_cast<float>(q(static_cast<int>(i), static_cast<int>(j)));
        rotation_[i * n + j] = transposed_[j * n + i] = entry;
      }
    }
  }

  int dim() const override { return dim_; }
  void forward(int rows, const float* x, int64_t ldx, float* y, int64_t ldy) const override {
    apply(transposed_.data(), rows, x, ldx, y, ldy);
  }
  void inverse(int rows, const float* x, int64_t ldx, float* y, int64_t ldy) const override {
    apply(rotation_.data(), rows, x, ldx, y, ldy);
  }

 private:
  /// y_i = sum over j ascending of matrix[j][i] * x_j: by columns, so that i runs along vector lanes.
  void apply(const float* matrix, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) const {
    std::vector<float> copy(x == y ? static_cast<size_t>(dim_) : 0);
    for (int r = 0; r < rows; ++r) {
      const float* input = x + r * ldx;
      if (x == y) input = std::copy_n(input, dim_, copy.data()) - dim_;
      float* __restrict out = y + r * ldy;
      std::fill_n(out, dim_, 0.0f);
      for (int j = 0; j < dim_; ++j) {
        const float factor = input[j];
        const float* __restrict column = matrix + static_cast<int64_t>(j) * dim_;
        for (int i = 0; i < dim_; ++i) out[i] += column[i] * factor;
      }
    }
  }

  int dim_;
  std::vector<float> rotation_, transposed_;
};

}  // namespace

std::shared_ptr<const OrthogonalMap> haar(int dim, uint64_t seed, uint32_t stream) {
  return std::make_shared<Haar>(dim, seed, stream);
}

}  // namespace veloxquant
