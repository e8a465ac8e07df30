// Inputs that several fault entries share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "core/arena.h"
#include "support/reference_attention.h"
#include "support/sanitizer.h"
#include "support/tensors.h"
#include "veloxquant/cache_set.h"
#include "veloxquant/codecs.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {

inline KVCache make(std::string_view method, const LayerShape& shape) { return KVCache(parse_method(method), shape); }

/// One kv head, keys and values of one size; fp16 input, so that exact rows come back bit for bit.
inline LayerShape one_head(int dim, int q_heads = 1) {
  return {.kv_heads = 1, .q_heads = q_heads, .dim_k = dim, .dim_v = dim, .layer = 0, .input = DType::f16};
}

/// Every method as it comes, then forms with small windows, which few tokens cross, and the other value codecs.
inline std::vector<std::string> every_method() {
  std::vector<std::string> texts;
  for (const MethodDef* def : built_methods()) texts.emplace_back(def->name);
  for (const char* text :
       {"kivi(group=8,residual=8)", "kivi(bits=4,group=8,residual=16,flush_rule=aligned_window)",
        "turboquant_rvq(bits=3,codebook=matched,value_codec=int8)", "turboquant_rvq(value_codec=turboquant_mse)"}) {
    texts.emplace_back(text);
  }
  return texts;
}

/// A long tensor out of few numbers: overlapping views of one buffer, whose rows differ because the shifts are no
/// multiples of a row.
class Pool {
 public:
  explicit Pool(size_t floats = size_t{1} << 20, uint32_t seed = 42) : x_(gaussian(floats, seed)) {}

  /// `tokens` tokens of the part numbered `part`; batch rows stand 1009 floats apart.
  Tensor view(int part, int batch, int tokens, int heads, int dim) const {
    Tensor t = Tensor::bshd(x_.data(), DType::f32, batch, tokens, heads, dim);
    t.stride_batch = kBatchShift;
    const size_t needed = static_cast<size_t>((batch - 1) * kBatchShift + tokens * t.stride_token);
    EXPECT_LT(needed, x_.size());
    t.data = x_.data() + static_cast<size_t>(part) * 7919 % (x_.size() - needed);
    return t;
  }
  /// Appends and commits `tokens` tokens, a chunk at a time.
  void fill(KVCache& cache, int batch, int tokens, int chunk = 512) const {
    const LayerShape& s = cache.shape();
    for (int part = 0; tokens > 0; ++part, tokens -= chunk) {
      const int n = std::min(chunk, tokens);
      cache.append(view(2 * part, batch, n, s.kv_heads, s.dim_k), view(2 * part + 1, batch, n, s.kv_heads, s.dim_v));
      cache.commit();
    }
  }

  static constexpr int64_t kBatchShift = 1009;

 private:
  std::vector<float> x_;
};

/// The same tensor with only batch row `b`.
inline Tensor batch_row(Tensor t, int b) {
  t.data = static_cast<const std::byte*>(t.data) + b * t.stride_batch * static_cast<int64_t>(size_of(t.dtype));
  t.batch = 1;
  return t;
}

/// An arena whose free slices, of the sizes that a cache asks for, are full of NaN in every element type.
inline std::shared_ptr<Arena> arena_of_nan(const MethodSpec& method, const LayerShape& shape) {
  auto arena = std::make_shared<Arena>();
  const DType store = shape.input == DType::f32 ? DType::f16 : shape.input;
  const Recipe recipe = build_recipe(method, {shape, store, 42});
  std::vector<std::pair<std::byte*, size_t>> slices;
  for (const auto& codec : {recipe.key, recipe.value, raw_rows(store, shape.dim_k), raw_rows(store, shape.dim_v)}) {
    const size_t bytes = codec->format().block_bytes();
    for (int i = 0; i < 16; ++i) slices.emplace_back(arena->allocate(bytes), bytes);
  }
  arena->allocate(1);  // stays in use: the last release would give everything back
  for (const auto& [slice, bytes] : slices) {
    std::memset(slice, 0xFF, bytes);
    arena->release(slice, bytes);
  }
  return arena;
}

inline bool all_finite(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace veloxquant::test
