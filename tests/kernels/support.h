// Shared by the kernel tests: every instruction set of this computer, random inputs, guarded outputs.
#pragma once

#include "kernels/targets.h"

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/kernels.h"

namespace veloxquant::kernels {

inline constexpr int kDims[] = {1, 2, 12, 33, 64, 80, 96, 112, 128, 192, 256};

/// Calls function(target) with each compiled instruction set that this computer has; the choice is restored.
template <class Function>
void for_every_target(Function function) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    SCOPED_TRACE(hwy::TargetName(target));
    function(target);
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
}

inline bool fuses_multiply_add(int64_t target) {
  return (target & (HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL | HWY_NEON)) != 0;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  uint32_t bits() { return engine_(); }
  float normal() { return normal_(engine_); }
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }

  std::vector<float> normals(size_t n) {
    std::vector<float> x(n);
    for (float& v : x) v = normal();
    return x;
  }
  std::vector<std::byte> bytes(size_t n) {
    std::vector<std::byte> x(n);
    for (std::byte& v : x) v = static_cast<std::byte>(engine_());
    return x;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

/// An output with guards on both sides and between rows: outputs of a kernel and of the reference start equal, so that
/// comparing whole buffers also shows what should not have been written. data() is one element off any alignment.
template <class T>
class Guarded {
 public:
  explicit Guarded(size_t n) : all_(n + 2 * kGuard, guard()) {}
  T* data() { return all_.data() + kGuard; }
  const std::vector<T>& all() const { return all_; }
  bool guards_hold() const {
    const auto is_guard = [](T x) { return x == guard(); };
    return std::all_of(all_.begin(), all_.begin() + kGuard, is_guard) &&
           std::all_of(all_.end() - kGuard, all_.end(), is_guard);
  }
  static T guard() { return static_cast<T>(-12345.25); }

 private:
  static constexpr size_t kGuard = 17;
  std::vector<T> all_;
};

template <class T>
testing::AssertionResult same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << "sizes " << a.size() << ", " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) {
      return testing::AssertionFailure() << "element " << i << ": " << +a[i] << " is not " << +b[i];
    }
  }
  return testing::AssertionSuccess();
}

/// |a - b| <= absolute + relative * |b| everywhere.
inline testing::AssertionResult close(const std::vector<float>& a, const std::vector<float>& b, double relative,
                                      double absolute = 0) {
  if (a.size() != b.size()) return testing::AssertionFailure() << "sizes " << a.size() << ", " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(double{a[i]} - double{b[i]});
    if (!(error <= absolute + relative * std::abs(double{b[i]}))) {
      return testing::AssertionFailure() << "element " << i << ": " << a[i] << " is not close to " << b[i];
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace veloxquant::kernels
