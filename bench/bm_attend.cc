// Attention over one layer's store on one thread: one query token (decode) and 256 (prefill) over a given number of
// stored tokens, and the commit of a prefill chunk. Counters: ns per stored row and kv head, packed bytes read a
// second. bm_attend_cold goes round the layers of a model whose stores no cache can hold, as a token does;
// bm_stream_cold reads such stores and does nothing else: the limit of the moment.
#include <benchmark/benchmark.h>

#include <algorithm>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/arena.h"
#include "kernels/kernels.h"
#include "veloxquant/cache_set.h"

namespace veloxquant {
namespace {

std::vector<float> gaussian(int n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = normal(random);
  return x;
}

/// A call's tensors, in the element type of `shape`.
struct Fixture {
  LayerShape shape;
  int tokens;
  std::vector<std::byte> q, k, v;
  std::vector<float> out;

  Fixture(const LayerShape& layer, int tokens_in_call)
      : shape(layer),
        tokens(tokens_in_call),
        q(random(shape.q_heads)),
        k(random(shape.kv_heads)),
        v(random(shape.kv_heads)),
        out(static_cast<size_t>(tokens * shape.q_heads * shape.dim_v)) {}
  Fixture(int dim, int tokens_in_call)
      : Fixture({.kv_heads = 3, .q_heads = 9, .dim_k = dim, .dim_v = dim, .layer = 0, .input = DType::f32},
                tokens_in_call) {}

  std::vector<std::byte> random(int heads) const {
    const std::vector<float> x = gaussian(tokens * heads * shape.dim_k);
    std::vector<std::byte> elements(x.size() * size_of(shape.input));
    kernels::from_f32(x.data(), static_cast<int64_t>(x.size()), shape.input, elements.data());
    return elements;
  }
  Tensor view(const std::vector<std::byte>& x, int heads) const {
    return Tensor::bshd(x.data(), shape.input, 1, tokens, heads, shape.dim_k);
  }
  void append(KVCache& cache) const { cache.append(view(k, shape.kv_heads), view(v, shape.kv_heads)); }
  void attend(const KVCache& cache) {
    AttendIn in;
    in.q = view(q, shape.q_heads);
    const int64_t head = shape.dim_v, token = shape.q_heads * head;
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

constexpr int kColdTokens = 32768;
constexpr size_t kColdBytes = size_t{512} << 20;

void bm_attend_cold(benchmark::State& state, const std::string& method) {
  const LayerShape shape{.kv_heads = 8, .q_heads = 32, .dim_k = 128, .dim_v = 128, .layer = 0, .input = DType::f16};
  const Fixture fill(shape, 512);
  KVCache probe(parse_method(method), shape);
  fill.append(probe);
  const size_t bytes = probe.used_bytes() * kColdTokens / 512;
  CacheSet layers(parse_method(method), std::vector<LayerShape>(std::max<size_t>(2, kColdBytes / bytes), shape));
  Fixture call(shape, 1);
  for (int stored = 0; stored < kColdTokens; stored += 512) {
    for (int i = 0; i < layers.size(); ++i) fill.append(layers[i]);
    layers.commit();
  }
  for (int i = 0; i < layers.size(); ++i) call.append(layers[i]);
  int next = 0;
  for (auto _ : state) {
    call.attend(layers[next]);
    next = (next + 1) % layers.size();
  }
  const double rows = double{kColdTokens} * shape.kv_heads * static_cast<double>(state.iterations());
  state.counters["ns/row"] = benchmark::Counter(rows * 1e-9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.SetBytesProcessed(static_cast<int64_t>(layers[0].peek().used_bytes) * state.iterations());
}

void bm_stream_cold(benchmark::State& state) {
  constexpr size_t kSlice = size_t{16} << 10, kPiece = size_t{128} << 20;
  Arena arena;
  std::vector<std::byte*> slices;
  while (slices.size() * kSlice < kColdBytes) {
    slices.push_back(arena.allocate(kSlice));
    std::memset(slices.back(), 1, kSlice);
  }
  size_t next = 0;
  for (auto _ : state) {
    for (size_t read = 0; read < kPiece; read += kSlice) {
      benchmark::DoNotOptimize(std::memchr(slices[next], 2, kSlice));  // reads all: there is none
      next = (next + 1) % slices.size();
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(kPiece) * state.iterations());
  for (std::byte* slice : slices) arena.release(slice, kSlice);
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
  benchmark::RegisterBenchmark("bm_stream_cold", bm_stream_cold)->Unit(benchmark::kMillisecond);
  for (const char* method : {"exact", "turboquant_rvq", "kivi", "kivi(bits=4)"}) {
    benchmark::RegisterBenchmark(("bm_attend_cold/" + std::string(method)).c_str(), bm_attend_cold, method)
        ->Unit(benchmark::kMillisecond);
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
  // With scores, beside exact: budgets that the stored rows and the call's own just exceed.
  for (const char* method : {"h2o(budget=8192)", "tova(budget=8192)", "snapkv(budget=8192)"}) {
    benchmark::RegisterBenchmark(("bm_attend_decode/" + std::string(method) + "/128").c_str(), bm_attend, method, 128,
                                 1)
        ->Arg(8192);
    benchmark::RegisterBenchmark(("bm_attend_prefill/" + std::string(method) + "/128").c_str(), bm_attend, method, 128,
                                 256)
        ->Arg(8192);
  }
  return 0;
}();

}  // namespace
}  // namespace veloxquant
