#include "workload.h"

#include <algorithm>
#include <random>

#include "core/half.h"

namespace veloxquant::bench {
namespace {

std::vector<float> gaussian(int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  std::ranges::generate(x, [&] { return normal(random); });
  return x;
}

int64_t offset_of(int token, int dim) { return int64_t{token % Workload::kPeriod} * kKvHeads * dim; }

}  // namespace

Workload::Workload(int head_dim) : dim(head_dim), q(gaussian(kPrefillQueries * kQHeads * dim, 1)) {
  for (const Side side : kSides) {
    const auto i = static_cast<size_t>(side);
    kv[i] = gaussian(kPeriod * kKvHeads * dim, 2 + static_cast<uint32_t>(i));
    kv_f16[i].resize(kv[i].size());
    std::ranges::transform(kv[i], kv_f16[i].begin(), f16_from_f32);
  }
}

Tensor Workload::rows(Side side, int first, int count) const {
  const float* data = kv[static_cast<size_t>(side)].data() + offset_of(first, dim);
  return Tensor::bshd(data, DType::f32, 1, count, kKvHeads, dim);
}

Tensor Workload::rows_f16(Side side, int first, int count) const {
  const uint16_t* data = kv_f16[static_cast<size_t>(side)].data() + offset_of(first, dim);
  return Tensor::bshd(data, DType::f16, 1, count, kKvHeads, dim);
}

const float* Workload::row(Side side, int token, int head) const {
  return kv[static_cast<size_t>(side)].data() + offset_of(token, dim) + int64_t{head} * dim;
}

}  // namespace veloxquant::bench
