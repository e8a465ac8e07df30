// Attention over one layer's store on one thread: one query token (decode) and 256 (prefill) over a given number of
// stored tokens, and the commit of a prefill chunk. Counters: ns per stored row and kv head, packed bytes read a
// second.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "veloxquant/cache.h"

namespace veloxquant {
namespace {

std::vector<float> gaussian(int n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = normal(random);
  return x;
}

struct Fixture {
  LayerShape shape;
  int tokens;
  std::vector<float> q, k, v, out;

  Fixture(int dim, int tokens_in_call)
      : shape{.kv_heads = 3, .q_heads = 9, .dim_k = dim, .dim_v = dim, .layer = 0, .input = DType::f32},
        tokens(tokens_in_call),
        q(gaussian(tokens * 9 * dim)),
        k(gaussian(tokens * 3 * dim)),
        v(gaussian(tokens * 3 * dim)),
        out(q.size()) {}

  Tensor view(const std::vector<float>& x, int heads) const {
    return Tensor::bshd(x.data(), DType::f32, 1, tokens, heads, shape.dim_k);
  }
  void append(KVCache& cache) const { cache.append(view(k, 3), view(v, 3)); }
  void attend(const KVCache& cache) {
    AttendIn in;
    in.q = view(q, 9);
    const int64_t head = shape.dim_v, token = 9 * head;
    cache.attend(in, {out.data(), token * tokens, token, head}, 0, 1);
  }
};

void bm_attend(benchmark::State& state, const std::string& method, int dim, int queries) {
  const int stored = static_cast<int>(state.range(0));
  const Fixture fill(dim, 512);
  KVCache cache(parse_method(method), fill.shape);
  while (cache.offset() < stored) fill.append(cache);
  cache.commit();
  Fixture call(dim, queries);
  call.append(cache);
  for (auto _ : state) call.attend(cache);
  const double rows = static_cast<double>(stored) * 3 * static_cast<double>(state.iterations());
  state.counters["ns/row"] = benchmark::Counter(rows * 1e-9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.SetBytesProcessed(static_cast<int64_t>(cache.peek().used_bytes) * state.iterations());
}

void bm_commit(benchmark::State& state, const std::string& method, int dim) {
  const Fixture chunk(dim, 256);
  KVCache cache(parse_method(method), chunk.shape);
  for (auto _ : state) {
    chunk.append(cache);
    cache.commit();
    if (cache.offset() < 8192) continue;
    state.PauseTiming();
    cache.reset();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(256 * state.iterations());
}

const int registered = [] {
  for (const char* method : {"exact", "turboquant_rvq", "kivi", "kivi(bits=4)"}) {
    for (int dim : {64, 128}) {
      const std::string tail = std::string(method) + "/" + std::to_string(dim);
      benchmark::RegisterBenchmark(("bm_attend_decode/" + tail).c_str(), bm_attend, method, dim, 1)
          ->Arg(1024)
          ->Arg(8192)
          ->Arg(32768);
      benchmark::RegisterBenchmark(("bm_attend_prefill/" + tail).c_str(), bm_attend, method, dim, 256)
          ->Arg(2048)
          ->Arg(8192);
      benchmark::RegisterBenchmark(("bm_commit/" + tail).c_str(), bm_commit, method, dim);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace veloxquant
