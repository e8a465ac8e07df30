// Attention over the rows that a method keeps, as the textbook writes it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "support/tensors.h"
#include "veloxquant/cache.h"

namespace veloxquant::test {

inline constexpr LayerShape kShape{.kv_heads = 2, .q_heads = 4, .dim_k = 32, .dim_v = 24};

inline KVCache make(const std::string& method, const LayerShape& shape = kShape) {
  return KVCache(parse_method(method), shape);
}

inline std::vector<int32_t> iota(int begin, int end) {
  std::vector<int32_t> x(static_cast<size_t>(end - begin));
  std::iota(x.begin(), x.end(), begin);
  return x;
}

inline double dot(const Sequences& d, int b, int token, int q_head, int row) {
  const LayerShape& s = d.shape;
  const int head = q_head / (s.q_heads / s.kv_heads);
  double sum = 0;
  for (int c = 0; c < s.dim_k; ++c) {
    sum += double{d.q[static_cast<size_t>(((b * d.tokens + token) * s.q_heads + q_head) * s.dim_k + c)]} *
           double{d.k[static_cast<size_t>(((b * d.tokens + row) * s.kv_heads + head) * s.dim_k + c)]};
  }
  return sum / std::sqrt(double(s.dim_k));
}

/// Softmax of one query over rows at `positions`, fp64.
inline std::vector<double> weights(const Sequences& d, int b, int token, int q_head,
                                   const std::vector<int32_t>& positions) {
  std::vector<double> w;
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int p : positions) {
    w.push_back(p <= token ? dot(d, b, token, q_head, p) : -std::numeric_limits<double>::infinity());
    max = std::max(max, w.back());
  }
  for (double& x : w) sum += x = std::exp(x - max);
  for (double& x : w) x /= sum;
  return w;
}

/// Outputs of one step over tokens [r) against attention over what is stored and the call's own rows.
inline void expect_step_sees_what_is_kept(KVCache& cache, const Sequences& d, Range r, const CallInfo& info = {},
                                          double tolerance = 1e-5) {
  const LayerShape& s = d.shape;
  std::vector<std::vector<int32_t>> kept;
  for (int b = 0; b < d.batch; ++b) {
    for (int h = 0; h < s.kv_heads; ++h) {
      kept.push_back(cache.batch() > 0 ? cache.positions(b, h) : std::vector<int32_t>());
      for (int t = r.begin; t < r.end; ++t) kept.back().push_back(t);
    }
  }
  const std::vector<float> got = cache.step(d.attend_in(r), d.keys(r), d.values(r), info);
  std::vector<float> expected;
  for (int b = 0; b < d.batch; ++b) {
    for (int t = r.begin; t < r.end; ++t) {
      for (int q = 0; q < s.q_heads; ++q) {
        const int head = q / (s.q_heads / s.kv_heads);
        const auto& positions = kept[static_cast<size_t>(b * s.kv_heads + head)];
        const std::vector<double> w = weights(d, b, t, q, positions);
        for (int c = 0; c < s.dim_v; ++c) {
          double sum = 0;
          for (size_t i = 0; i < w.size(); ++i) {
            if (w[i] == 0) continue;
            const auto row = static_cast<size_t>((b * d.tokens + positions[i]) * s.kv_heads + head);
            sum += w[i] * double{d.v[row * static_cast<size_t>(s.dim_v) + static_cast<size_t>(c)]};
          }
          expected.push_back(static_cast<float>(sum));
        }
      }
    }
  }
  EXPECT_LT(relative_l2(got, expected), tolerance) << "tokens " << r.begin << ".." << r.end;
}

}  // namespace veloxquant::test
