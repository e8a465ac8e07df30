// Attention as the textbook writes it, in fp64: what every path of the engine is compared with.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "veloxquant/cache.h"

namespace veloxquant::test {

/// Dense rows of one batch row: k [n][kv_heads][dim_k], v [n][kv_heads][dim_v].
struct DenseRows {
  int rows = 0;
  std::vector<float> k, v;
};

/// Outputs [tokens][q_heads][dim_v] of the queries `q` [tokens][q_heads][dim_k] at rows n - tokens .. n - 1.
inline std::vector<float> reference_attention(const LayerShape& s, const DenseRows& store, const float* q, int tokens,
                                              const AttendIn& how) {
  const int group = s.q_heads / s.kv_heads;
  const double scale = how.scale != 0 ? double{how.scale} : 1 / std::sqrt(double(s.dim_k));
  std::vector<float> out(static_cast<size_t>(tokens * s.q_heads * s.dim_v));
  std::vector<double> logit(static_cast<size_t>(store.rows)), o(static_cast<size_t>(s.dim_v));
  for (int t = 0; t < tokens; ++t) {
    const int at = store.rows - tokens + t;
    for (int h = 0; h < s.q_heads; ++h) {
      const int kv = h / group;
      double max = -std::numeric_limits<double>::infinity();
      for (int r = 0; r <= at; ++r) {
        double dot = 0;
        for (int c = 0; c < s.dim_k; ++c) {
          dot += double{q[(t * s.q_heads + h) * s.dim_k + c]} *
                 double{store.k[static_cast<size_t>((r * s.kv_heads + kv) * s.dim_k + c)]};
        }
        double x = dot * scale;
        if (how.softcap != 0) x = how.softcap * std::tanh(x / how.softcap);
        if (!how.alibi.empty()) x -= double{how.alibi[static_cast<size_t>(h)]} * (at - r);
        if (how.bias) x += double{how.bias[t * how.bias_ld + r]};
        if (how.window > 0 && at - r >= how.window) x = -std::numeric_limits<double>::infinity();
        if (how.chunk > 0 && r < at / how.chunk * how.chunk) x = -std::numeric_limits<double>::infinity();
        logit[static_cast<size_t>(r)] = x;
        max = std::max(max, x);
      }
      const bool sink = !how.sinks.empty();
      if (sink) max = std::max(max, double{how.sinks[static_cast<size_t>(h)]});
      double sum = sink ? std::exp(double{how.sinks[static_cast<size_t>(h)]} - max) : 0;
      std::fill(o.begin(), o.end(), 0.0);
      for (int r = 0; r <= at; ++r) {
        const double p = std::exp(logit[static_cast<size_t>(r)] - max);
        sum += p;
        for (int c = 0; c < s.dim_v; ++c) {
          o[static_cast<size_t>(c)] += p * double{store.v[static_cast<size_t>((r * s.kv_heads + kv) * s.dim_v + c)]};
        }
      }
      for (int c = 0; c < s.dim_v; ++c) {
        out[static_cast<size_t>((t * s.q_heads + h) * s.dim_v + c)] =
            static_cast<float>(o[static_cast<size_t>(c)] / sum);
      }
    }
  }
  return out;
}

/// Dense [batch][heads][n][dim] as KVCache::decode gives it -> the rows of one batch row, [rows][heads][dim].
inline std::vector<float> rows_of(const std::vector<float>& dense, int batch_row, int heads, int n, int dim, int rows) {
  std::vector<float> out(static_cast<size_t>(rows * heads * dim));
  for (int h = 0; h < heads; ++h) {
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < dim; ++c) {
        out[static_cast<size_t>((r * heads + h) * dim + c)] =
            dense[static_cast<size_t>(((batch_row * heads + h) * n + r) * dim + c)];
      }
    }
  }
  return out;
}

/// The stored rows of one batch row, in their stored form.
inline DenseRows stored_rows(KVCache& cache, int batch_row) {
  DenseRows store;
  const int n = cache.size();
  if (n == 0) return store;
  store.rows = cache.offset(batch_row);
  const LayerShape& s = cache.shape();
  store.k = rows_of(cache.decode(Side::key), batch_row, s.kv_heads, n, s.dim_k, store.rows);
  store.v = rows_of(cache.decode(Side::value), batch_row, s.kv_heads, n, s.dim_v, store.rows);
  return store;
}

}  // namespace veloxquant::test
