#include "kernels/affine_ends.h"

#include <algorithm>
#include <array>

namespace veloxquant::kernels {
namespace {

constexpr double kLargestBfloat = 0x1.FEp127;
constexpr size_t kSums = 16;

double sum_of(std::array<double, kSums> sums) {
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

/// Means of the values up to `boundary` and above it. In double, so that no sum overflows; partial sums and one tree.
AffineEnds means_around(const float* x, int64_t stride, int m, double boundary, AffineEnds before) {
  std::array<double, kSums> low{}, high{};
  int count = 0;  // above
  for (int i = 0; i < m; ++i) {
    const float value = x[i * stride];
    const bool above = value > boundary;
    (above ? high : low)[static_cast<size_t>(i) % kSums] += value;
    count += above;
  }
  if (count < m) before.low = static_cast<float>(sum_of(low) / (m - count));
  if (count > 0) before.high = static_cast<float>(sum_of(high) / count);
  return before;
}

}  // namespace

AffineEnds two_means(const float* x, int64_t stride, int m, AffineEnds ends) {
  constexpr int kMostSweeps = 20;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    const AffineEnds next = means_around(x, stride, m, (static_cast<double>(ends.low) + ends.high) / 2, ends);
    if (next.low == ends.low && next.high == ends.high) break;
    ends = next;
  }
  return ends;
}

float wide_step(AffineEnds ends, float last) {
  return static_cast<float>(std::min((static_cast<double>(ends.high) - ends.low) / last, kLargestBfloat));
}

}  // namespace veloxquant::kernels
