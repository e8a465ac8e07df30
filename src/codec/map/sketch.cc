// Directions of a sketch (QJL, arXiv:2406.03482). With x in R^D, |x| = 1, the mean of sign(<s, k>) <s, q> is c <q, k> /
// |k|, where c = sqrt(2 / pi) for Gaussian s and c = sqrt(D) Gamma(D / 2) / (sqrt(pi) Gamma((D + 1) / 2)) for s of
// length sqrt(D): every row of a Haar matrix is a uniform direction, so a block that is cut leaves the constant as it
// is.
#include <cmath>
#include <numbers>

#include "codec/map/dense.h"
#include "codec/map/linear_map.h"

namespace veloxquant {
namespace {

class SketchMap final : public LinearMap {
 public:
  SketchMap(int dim, int rows, SketchRows kind, const Random& random) : directions_(rows, dim) {
    const uint64_t block = static_cast<uint64_t>(dim) * static_cast<uint64_t>(dim);  // numbers of one Haar matrix
    std::vector<double> q;
    for (int i = 0; i < rows; ++i) {
      const uint64_t first = static_cast<uint64_t>(i) * static_cast<uint64_t>(dim);
      if (kind == SketchRows::orthogonal && first % block == 0) q = haar_matrix(dim, random, first);
      for (int j = 0; j < dim; ++j) {
        const uint64_t number = first + static_cast<uint64_t>(j);
        directions_.set(i, j,
                        kind == SketchRows::gaussian ? random.normal(number)
                                                     : std::sqrt(dim) * q[static_cast<size_t>(number % block)]);
      }
    }
  }

  int dim() const override { return directions_.cols(); }
  int frame_dim() const override { return directions_.rows(); }
  void forward(int rows, const float* x, int64_t ldx, float* y, int64_t ldy) const override {
    directions_.multiply(rows, x, ldx, y, ldy);
  }
  void adjoint(int rows, const float* y, int64_t ldy, float* x, int64_t ldx) const override {
    directions_.multiply_transposed(rows, y, ldy, x, ldx);
  }

 private:
  DenseMatrix directions_;
};

}  // namespace

std::shared_ptr<const LinearMap> sketch_map(int dim, int rows, SketchRows kind, uint64_t seed, uint32_t stream) {
  return std::make_shared<SketchMap>(dim, rows, kind, Random(seed, Purpose::sketch, stream));
}

double sketch_scale(int dim, int rows, SketchRows kind) {
  const double d = dim;
  const double c = kind == SketchRows::gaussian
                       ? std::sqrt(2 / std::numbers::pi)
                       : std::sqrt(d / std::numbers::pi) * std::exp(std::lgamma(d / 2) - std::lgamma((d + 1) / 2));
  return 1 / (rows * c);
}

}  // namespace veloxquant
