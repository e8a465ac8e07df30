// Haar rotation, computed in double and rounded to fp32 once.
#include "codec/map/dense.h"
#include "codec/map/orthogonal_map.h"

namespace veloxquant {
namespace {

class Haar final : public OrthogonalMap {
 public:
  Haar(int dim, uint64_t seed, uint32_t stream) : rotation_(dim, dim) {
    const std::vector<double> q = haar_matrix(dim, Random(seed, Purpose::rotation, stream), 0);
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) rotation_.set(i, j, q[static_cast<size_t>(int64_t{i} * dim + j)]);
    }
  }

  int dim() const override { return rotation_.cols(); }
  void forward(int rows, const float* x, int64_t ldx, float* y, int64_t ldy) const override {
    rotation_.multiply(rows, x, ldx, y, ldy);
  }
  void adjoint(int rows, const float* y, int64_t ldy, float* x, int64_t ldx) const override {
    rotation_.multiply_transposed(rows, y, ldy, x, ldx);
  }

 private:
  DenseMatrix rotation_;
};

}  // namespace

std::shared_ptr<const OrthogonalMap> haar(int dim, uint64_t seed, uint32_t stream) {
  return std::make_shared<Haar>(dim, seed, stream);
}

}  // namespace veloxquant
