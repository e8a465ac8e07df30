// Element-wise coding in steps of 16: loops of a constant length, which the compiler turns into vector instructions of
// the baseline. A result never depends on where in a step its value stands.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace veloxquant {

inline constexpr size_t kLanes = 16;
using FloatLanes = std::array<float, kLanes>;
using CodeLanes = std::array<int32_t, kLanes>;

/// codes[i] = the low byte of code(x)[i], for code(const FloatLanes&) -> CodeLanes.
template <class Code>
void code_lanes(const float* x, int n, uint8_t* codes, Code code) {
  int i = 0;
  for (; i + static_cast<int>(kLanes) <= n; i += static_cast<int>(kLanes)) {
    FloatLanes value;
    std::copy_n(x + i, kLanes, value.begin());
    const CodeLanes result = code(value);
    for (size_t l = 0; l < kLanes; ++l) codes[static_cast<size_t>(i) + l] = static_cast<uint8_t>(result[l]);
  }
  if (i == n) return;
  FloatLanes value{};
  std::copy(x + i, x + n, value.begin());
  const CodeLanes result = code(value);
  for (size_t l = 0; i < n; ++i, ++l) codes[i] = static_cast<uint8_t>(result[l]);
}

/// Sum by one fixed tree.
template <class T>
T sum_lanes(std::array<T, kLanes> sum) {
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) sum[l] += sum[l + half];
  }
  return sum[0];
}

}  // namespace veloxquant
