// Seeded tensors and calls for tests.
#pragma once

#include <random>
#include <vector>

#include "core/half.h"
#include "veloxquant/cache.h"

namespace veloxquant::test {

/// Gaussian numbers, rounded to fp16 so that every element type up to it holds them exactly.
inline std::vector<float> gaussian(size_t n, uint32_t seed, float sigma = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> x(n);
  for (float& v : x) v = f32_from_f16(f16_from_f32(normal(generator)));
  return x;
}

/// Q, K, V of `batch` sequences of `tokens` tokens, [batch][tokens][heads][dim].
struct Sequences {
  LayerShape shape;
  int batch = 1, tokens = 0;
  std::vector<float> q, k, v;

  Sequences(const LayerShape& layer, int batch_rows, int n, uint32_t seed = 42)
      : shape(layer), batch(batch_rows), tokens(n) {
    const size_t rows = static_cast<size_t>(batch_rows) * static_cast<size_t>(n);
    q = gaussian(rows * static_cast<size_t>(layer.q_heads * layer.dim_k), seed);
    k = gaussian(rows * static_cast<size_t>(layer.kv_heads * layer.dim_k), seed + 1);
    v = gaussian(rows * static_cast<size_t>(layer.kv_heads * layer.dim_v), seed + 2);
  }

  Tensor view(const std::vector<float>& x, int heads, int dim, Range tokens_in) const {
    Tensor t = Tensor::bshd(x.data(), DType::f32, batch, tokens, heads, dim);
    t.data = x.data() + int64_t{tokens_in.begin} * t.stride_token;
    t.tokens = tokens_in.size();
    return t;
  }
  Tensor keys(Range r) const { return view(k, shape.kv_heads, shape.dim_k, r); }
  Tensor values(Range r) const { return view(v, shape.kv_heads, shape.dim_v, r); }
  Tensor queries(Range r) const { return view(q, shape.q_heads, shape.dim_k, r); }
  AttendIn attend_in(Range r) const {
    AttendIn in;
    in.q = queries(r);
    return in;
  }
  /// One step over tokens [r).
  std::vector<float> step(KVCache& cache, Range r) const { return cache.step(attend_in(r), keys(r), values(r)); }
  /// Stores tokens [r) without attending.
  void store(KVCache& cache, Range r) const {
    cache.append(keys(r), values(r));
    cache.commit();
  }
  /// Steps over `chunks` tokens each, beginning at token `from`; outputs one after another.
  std::vector<float> feed(KVCache& cache, const std::vector<int>& chunks, int from = 0) const {
    std::vector<float> out;
    for (int n : chunks) {
      const std::vector<float> o = step(cache, {from, from + n});
      out.insert(out.end(), o.begin(), o.end());
      from += n;
    }
    return out;
  }
};

inline std::vector<int> ones(int n) { return std::vector<int>(static_cast<size_t>(n), 1); }

/// `n` tokens in calls of `size`, the last one shorter.
inline std::vector<int> chunks_of(int n, int size) {
  std::vector<int> chunks;
  for (; n > 0; n -= size) chunks.push_back(std::min(n, size));
  return chunks;
}

inline double relative_l2(const std::vector<float>& got, const std::vector<float>& expected) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = double{got[i]} - double{expected[i]};
    error += d * d;
    energy += double{expected[i]} * double{expected[i]};
  }
  return energy > 0 ? std::sqrt(error / energy) : std::sqrt(error);
}

}  // namespace veloxquant::test
