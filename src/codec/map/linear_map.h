// Linear maps from the channels of a row to the frame that a codec works in, y = M x, and back by the transpose. fp32,
// one defined order of additions and no FMA, so a map gives the same bits on every instruction set: encoders may use
// it.
#pragma once

#include <cstdint>
#include <memory>

#include "veloxquant/codecs.h"

namespace veloxquant {

class LinearMap {
 public:
  virtual ~LinearMap() = default;
  virtual int dim() const = 0;        ///< channels of x
  virtual int frame_dim() const = 0;  ///< channels of y
  /// y[r * ldy ..] = M x[r * ldx ..] for each row; y may be x where M is square and the strides are equal.
  virtual void forward(int rows, const float* x, int64_t ldx, float* y, int64_t ldy) const = 0;
  /// x[r * ldx ..] = M^T y[r * ldy ..], likewise.
  virtual void adjoint(int rows, const float* y, int64_t ldy, float* x, int64_t ldx) const = 0;
};

/// The projections of a sketch: `rows` random directions s, y_i = <s_i, x>. Gaussian directions are i.i.d. N(0, I);
/// orthogonal ones are the rows of independent Haar rotations times sqrt(dim), of the last one as many as are needed.
std::shared_ptr<const LinearMap> sketch_map(int dim, int rows, SketchRows kind, uint64_t seed, uint32_t stream);
/// What makes scale * |k| * sum of sign(<s_i, k>) <s_i, q> an unbiased estimate of <q, k>.
double sketch_scale(int dim, int rows, SketchRows kind);

}  // namespace veloxquant
