#include "veloxquant/layer_budgets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "veloxquant/errors.h"

namespace veloxquant {

std::vector<int> integerise(std::span<const double> wanted, int floor, int64_t total) {
  const size_t n = wanted.size();
  const auto least = static_cast<double>(floor);
  if (static_cast<int64_t>(n) * floor >= total) return std::vector<int>(n, floor);
  // Layers that want less than the floor stand at it; the others share what is left in proportion to what they have
  // above it, so that none falls below.
  std::vector<bool> free(n);
  for (size_t i = 0; i < n; ++i) free[i] = wanted[i] > least;
  std::vector<double> share(n, least);
  const double above = static_cast<double>(total) - least * static_cast<double>(n);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += free[i] ? wanted[i] - least : 0;
  for (size_t i = 0; i < n; ++i) {
    share[i] = sum == 0 ? static_cast<double>(total) / static_cast<double>(n)
                        : least + (free[i] ? (wanted[i] - least) * above / sum : 0);
  }
  std::vector<int> budgets(n);
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  int64_t left = total;
  for (size_t i = 0; i < n; ++i) {
    budgets[i] = static_cast<int>(std::floor(share[i]));
    left -= budgets[i];
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return share[a] - std::floor(share[a]) > share[b] - std::floor(share[b]);
  });
  for (size_t i = 0; left > 0; i = (i + 1) % n, --left) ++budgets[order[i]];
  return budgets;
}

std::vector<int> pyramid_budgets(int layers, int avg_budget, int n_sink, double beta, int window,
                                 PyramidSchedule schedule) {
  std::vector<std::string> problems;
  if (layers < 0) problems.push_back(fmt::format("layers: got {}, allowed 0 and more", layers));
  if (avg_budget < 1) problems.push_back(fmt::format("avg_budget: got {}, allowed 1 and more", avg_budget));
  if (n_sink < 0) problems.push_back(fmt::format("n_sink: got {}, allowed 0 and more", n_sink));
  if (!(beta >= 1) || std::isinf(beta)) problems.push_back(fmt::format("beta: got {}, allowed 1 and more", beta));
  if (window < 0) problems.push_back(fmt::format("window: got {}, allowed 0 and more", window));
  if (!problems.empty()) throw QuantizerConfigError(std::move(problems));
  const int floor = n_sink + 1;
  if (layers == 0) return {};
  if (layers == 1) return {std::max(avg_budget, floor)};
  std::vector<double> wanted(static_cast<size_t>(layers));
  for (int l = 0; l < layers; ++l) {
    const double place = static_cast<double>(l) / (layers - 1);
    double& x = wanted[static_cast<size_t>(l)];
    if (schedule == PyramidSchedule::linear) {
      x = avg_budget + (avg_budget - floor) * (beta - 1) * (1 - 2 * place);
    } else {
      const int common = std::min(window, avg_budget / 2);
      const double mean = avg_budget - common, top = mean / beta, bottom = 2 * mean - top;
      x = common + bottom - (bottom - top) * place;
    }
  }
  return integerise(wanted, floor, int64_t{layers} * avg_budget);
}

}  // namespace veloxquant
