// The rare parts of the affine code, scalar on every instruction set: 1 bit, and ranges beyond fp32.
#pragma once

#include <cstdint>

namespace veloxquant::kernels {

/// Where the codes of a group begin and end.
struct AffineEnds {
  float low, high;
};

/// The two means of 1-D 2-means of x[i * stride], i < m, from the least and the largest value on.
AffineEnds two_means(const float* x, int64_t stride, int m, AffineEnds ends);

/// The step of a group whose range overflows fp32, at most the largest bf16 number.
float wide_step(AffineEnds ends, float last);

}  // namespace veloxquant::kernels
