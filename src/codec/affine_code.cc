#include "codec/affine_code.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

#include "codec/lanes.h"
#include "core/half.h"

namespace veloxquant {
namespace {

constexpr float kLargestHalf = 65504;
constexpr float kLargestBfloat = 0x1.FEp127f;
constexpr uint16_t kBfloatFlag = 0x8000;

struct Ends {
  float low, high;
};

Ends range_of(const float* x, int m) {
  FloatLanes low, high;
  low.fill(x[0]);
  high.fill(x[0]);
  int i = 0;
  for (; i + static_cast<int>(kLanes) <= m; i += static_cast<int>(kLanes)) {
    for (size_t l = 0; l < kLanes; ++l) {
      const float value = x[static_cast<size_t>(i) + l];
      low[l] = value < low[l] ? value : low[l];
      high[l] = value > high[l] ? value : high[l];
    }
  }
  Ends ends{*std::min_element(low.begin(), low.end()), *std::max_element(high.begin(), high.end())};
  for (; i < m; ++i) ends = {std::min(ends.low, x[i]), std::max(ends.high, x[i])};
  return ends;
}

/// Means of the values up to `boundary` and above it. In double, so that no sum overflows; partial sums and one tree.
Ends means_around(const float* x, int m, double boundary, Ends before) {
  std::array<double, kLanes> low{}, high{};
  int count = 0;  // above
  for (int i = 0; i < m; ++i) {
    const bool above = x[i] > boundary;
    (above ? high : low)[static_cast<size_t>(i) % kLanes] += x[i];
    count += above;
  }
  if (count < m) before.low = static_cast<float>(sum_lanes(low) / (m - count));
  if (count > 0) before.high = static_cast<float>(sum_lanes(high) / count);
  return before;
}

/// The two means of 1-D 2-means, from the least and the largest value on.
Ends two_means(const float* x, int m, Ends ends) {
  constexpr int kMostSweeps = 20;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    const Ends next = means_around(x, m, (static_cast<double>(ends.low) + ends.high) / 2, ends);
    if (next.low == ends.low && next.high == ends.high) break;
    ends = next;
  }
  return ends;
}

/// Codes against the stored parameters. `factor` scales all three: differences of wide groups may overflow, and halving
/// all numbers changes no quotient.
void code_group(const float* x, int m, float zero, float scale, float last, float factor, uint8_t* codes) {
  zero *= factor;
  scale *= factor;
  code_lanes(x, m, codes, [=](const FloatLanes& value) {
    CodeLanes code;
    for (size_t l = 0; l < kLanes; ++l) {
      const float quotient = (value[l] * factor - zero) / scale;
      const float above = quotient > 0 ? quotient : 0.0f;
      const float clamped = above < last ? above : last;
      code[l] = std::bit_cast<int32_t>(clamped + 0x1p23f);  // the low bits: rounded to nearest even
    }
    return code;
  });
}

}  // namespace

AffineParams affine_encode(const float* x, int m, int bits, uint8_t* codes) {
  const float last = static_cast<float>((1 << bits) - 1);
  Ends ends = range_of(x, m);
  if (bits == 1) ends = two_means(x, m, ends);
  const float range = ends.high - ends.low;
  const double wide_range = static_cast<double>(ends.high) - ends.low;
  const float step =
      range <= FLT_MAX ? range / last : static_cast<float>(std::min<double>(wide_range / last, kLargestBfloat));
  const bool wide = std::fabs(ends.low) > kLargestHalf || step > kLargestHalf;
  const AffineParams params = wide ? AffineParams{bf16_from_f32(ends.low), bf16_from_f32(step)}
                                   : AffineParams{f16_from_f32(ends.low), f16_from_f32(step)};
  const float zero = wide ? f32_from_bf16(params.zero) : f32_from_f16(params.zero);
  const float scale = wide ? f32_from_bf16(params.scale) : f32_from_f16(params.scale);
  if (scale > 0) {
    code_group(x, m, zero, scale, last, wide ? 0.5f : 1.0f, codes);
  } else {
    std::fill_n(codes, m, uint8_t{0});
  }
  return {params.zero, static_cast<uint16_t>(wide ? params.scale | kBfloatFlag : params.scale)};
}

}  // namespace veloxquant
