// One attention layer's cache by hand: a prefill, some decode steps, what it costs, and taking tokens back.
// Usage: example_01_one_layer [METHOD], e.g. 'kivi(bits=4)'
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <vector>

#include "veloxquant/cache.h"

using namespace veloxquant;

namespace {

constexpr LayerShape kShape{.kv_heads = 2, .q_heads = 8, .dim_k = 64, .dim_v = 64, .layer = 0, .input = DType::f32};

// What a model would hand over: Q, K and V of one call, [batch][tokens][heads][dim].
struct Call {
  std::vector<float> q, k, v;
  int tokens;
  Call(int n, std::mt19937& random) : tokens(n) {
    std::normal_distribution<float> normal;
    for (auto [x, heads] : {std::pair{&q, kShape.q_heads}, {&k, kShape.kv_heads}, {&v, kShape.kv_heads}}) {
      x->resize(static_cast<size_t>(n * heads * 64));
      for (float& value : *x) value = normal(random);
    }
  }
};

std::vector<float> step(KVCache& cache, const Call& call, Phase phase) {
  const auto view = [&](const std::vector<float>& x, int heads) {
    return Tensor::bshd(x.data(), DType::f32, 1, call.tokens, heads, 64);
  };
  AttendIn in;
  in.q = view(call.q, kShape.q_heads);
  return cache.step(in, view(call.k, kShape.kv_heads), view(call.v, kShape.kv_heads), {.phase = phase, .valid = {}});
}

}  // namespace

int main(int argc, char** argv) try {
  std::mt19937 random(1);
  KVCache cache(parse_method(argc > 1 ? argv[1] : "kivi(bits=4)"), kShape);
  step(cache, Call(1000, random), Phase::prefill_last);
  for (int i = 0; i < 24; ++i) step(cache, Call(1, random), Phase::decode);

  const CacheStats stats = cache.peek();
  std::printf("%d tokens, %zu bytes by the formula, %zu from the allocator, %zu as fp16\n", stats.rows,
              stats.used_bytes, stats.nbytes, stats.key.fp16_bytes + stats.value.fp16_bytes);
  const int removed = cache.trim(24);
  std::printf("taken back: %d tokens, %d left\n", removed, cache.offset());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
