#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "memory_stream.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace veloxquant::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Sum of n numbers, n a multiple of eight vectors: eight independent sums keep many lines on their way.
uint64_t sum(const uint64_t* x, size_t n) {
  const hn::ScalableTag<uint64_t> d;
  constexpr size_t kLanes = HWY_LANES(uint64_t);
  hn::Vec<decltype(d)> sums[8];
  for (auto& s : sums) s = hn::Zero(d);
  for (size_t i = 0; i < n; i += 8 * kLanes) {
    for (size_t j = 0; j < 8; ++j) sums[j] = hn::Add(sums[j], hn::Load(d, x + i + j * kLanes));
  }
  for (size_t j = 1; j < 8; ++j) sums[0] = hn::Add(sums[0], sums[j]);
  return hn::GetLane(hn::SumOfLanes(d, sums[0]));
}

}  // namespace veloxquant::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "memory_stream.h"

namespace veloxquant::bench {

HWY_EXPORT(sum);

void MemoryStream::call() {
  const auto* x = reinterpret_cast<const uint64_t*>(buffer_.data());
  const size_t lines = kBytes / 4096, threads = static_cast<size_t>(threads_);
  uint64_t total = 0;
#pragma omp parallel for num_threads(threads_) reduction(+ : total) if (threads_ > 1)
  for (size_t t = 0; t < threads; ++t) {
    const size_t begin = lines * t / threads * 512, end = lines * (t + 1) / threads * 512;
    total += HWY_DYNAMIC_DISPATCH(sum)(x + begin, end - begin);
  }
  sum_ = total;
}

}  // namespace veloxquant::bench
#endif
