// Which rows a pool of sinks wants.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "veloxquant/placement.h"

namespace veloxquant {

SinkPool::SinkPool(int capacity, Signal signal) : capacity_(capacity), signal_(signal), scorer_(key_norm(false)) {}

std::vector<int> SinkPool::top(std::span<const float> norms, std::span<const int32_t> wanted) const {
  if (!wanted.empty() || signal_ == Signal::external) {
    std::vector<int> rows(wanted.begin(), wanted.end());
    std::erase_if(rows, [&](int row) { return static_cast<size_t>(row) >= norms.size(); });
    return rows;
  }
  std::vector<float> rank(norms.begin(), norms.end());
  if (signal_ == Signal::two_sided && !rank.empty()) {
    std::vector<float> sorted = rank;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    // A norm of 0 is as far from the median as can be.
    for (float& x : rank) x = *middle > 0 ? std::fabs(std::log(x / *middle)) : x;
  }
  std::vector<int> rows(rank.size());
  std::iota(rows.begin(), rows.end(), 0);
  const auto count = std::min(rows.size(), static_cast<size_t>(capacity_));
  std::partial_sort(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count), rows.end(), [&](int a, int b) {
    const float x = rank[static_cast<size_t>(a)], y = rank[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  rows.resize(count);
  return rows;
}

}  // namespace veloxquant
