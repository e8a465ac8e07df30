// Speed of the inner loops on the instruction set that the computer chooses: bm_<what>/<shape>. Counters: FLOP/s,
// values/s, and time per row for dot_rows. Operands stay in the cache, as they do in the engine's tiles.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace {

using namespace veloxquant;

benchmark::Counter per_second(double amount_per_iteration) {
  return benchmark::Counter(amount_per_iteration, benchmark::Counter::kIsIterationInvariantRate,
                            benchmark::Counter::kIs1000);
}

/// Memory that begins on a cache line, as the engine's does: otherwise every store of 64 bytes hits two lines.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64))); }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  bool operator==(const LineAllocator&) const = default;
};
template <class T>
using Buffer = std::vector<T, LineAllocator<T>>;

Buffer<float> ramp(size_t n) {
  Buffer<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(static_cast<int>(i % 31) - 15) * 0.01f;
  return x;
}

void bm_multiply_accumulate(benchmark::State& state) {
  const int m = static_cast<int>(state.range(0)), n = static_cast<int>(state.range(1)),
            k = static_cast<int>(state.range(2));
  const Buffer<float> a = ramp(static_cast<size_t>(m * k)), b = ramp(static_cast<size_t>(k * n));
  Buffer<float> c(static_cast<size_t>(m * n));
  for (auto _ : state) {
    kernels::multiply_accumulate(m, n, k, a.data(), k, 1, b.data(), n, c.data(), n);
    benchmark::ClobberMemory();
  }
  state.counters["FLOP/s"] = per_second(2.0 * m * n * k);
}
BENCHMARK(bm_multiply_accumulate)
    ->ArgNames({"m", "n", "k"})
    ->Args({96, 128, 64})
    ->Args({96, 64, 128})
    ->Args({8, 128, 64})
    ->Args({3, 128, 64})
    ->Args({1, 128, 64});

void bm_dot_rows(benchmark::State& state) {
  constexpr int kRows = 128;
  const int n = static_cast<int>(state.range(0)), dim = static_cast<int>(state.range(1));
  const Buffer<float> q = ramp(static_cast<size_t>(n * dim)), x = ramp(static_cast<size_t>(kRows * dim));
  Buffer<float> logit(static_cast<size_t>(n * kRows));
  for (auto _ : state) {
    kernels::dot_rows(n, kRows, dim, q.data(), dim, x.data(), dim, logit.data(), kRows);
    benchmark::ClobberMemory();
  }
  state.counters["s/row"] = benchmark::Counter(
      kRows, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert, benchmark::Counter::kIs1000);
}
BENCHMARK(bm_dot_rows)->ArgNames({"n", "dim"})->Args({1, 64})->Args({3, 64})->Args({4, 128})->Args({8, 128});

void bm_transpose(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0)), cols = static_cast<int>(state.range(1));
  const Buffer<float> x = ramp(static_cast<size_t>(rows * cols));
  Buffer<float> y(x.size());
  for (auto _ : state) {
    kernels::transpose(rows, cols, x.data(), cols, y.data(), rows);
    benchmark::ClobberMemory();
  }
  state.counters["values/s"] = per_second(static_cast<double>(rows) * cols);
}
BENCHMARK(bm_transpose)->ArgNames({"rows", "cols"})->Args({64, 64})->Args({64, 128});

void bm_softmax_step(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  const Buffer<float> logits = ramp(static_cast<size_t>(n));
  Buffer<float> x(logits.size());
  for (auto _ : state) {
    x = logits;
    float max = -1.0f;
    benchmark::DoNotOptimize(kernels::softmax_step(x.data(), n, &max));
  }
  state.counters["values/s"] = per_second(n);
}
BENCHMARK(bm_softmax_step)->ArgName("n")->Arg(64)->Arg(128)->Arg(2048);

void bm_f16_to_f32(benchmark::State& state) {
  const int64_t n = state.range(0);
  const Buffer<uint16_t> x(static_cast<size_t>(n), 0x3c12);
  Buffer<float> out(x.size());
  for (auto _ : state) {
    kernels::to_f32(x.data(), n, DType::f16, out.data());
    benchmark::ClobberMemory();
  }
  state.counters["values/s"] = per_second(static_cast<double>(n));
}
BENCHMARK(bm_f16_to_f32)->ArgName("n")->Arg(4096);

void bm_f32_to_f16(benchmark::State& state) {
  const Buffer<float> x = ramp(static_cast<size_t>(state.range(0)));
  Buffer<uint16_t> out(x.size());
  for (auto _ : state) {
    kernels::from_f32(x.data(), state.range(0), DType::f16, out.data());
    benchmark::ClobberMemory();
  }
  state.counters["values/s"] = per_second(static_cast<double>(x.size()));
}
BENCHMARK(bm_f32_to_f16)->ArgName("n")->Arg(4096);

/// Codes of `rows` rows, any bytes will do.
Buffer<std::byte> codes_of(int rows, int dim, int bits) {
  Buffer<std::byte> codes(static_cast<size_t>(rows * dim * bits / 8));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 37);
  return codes;
}

void bm_decode_affine(benchmark::State& state) {
  const int bits = static_cast<int>(state.range(0)), runs = static_cast<int>(state.range(1)),
            run_codes = static_cast<int>(state.range(2));
  const Buffer<std::byte> codes = codes_of(runs, run_codes, bits);
  const Buffer<uint16_t> params(static_cast<size_t>(runs * run_codes / 32 * 2), 0x3c00);
  Buffer<float> out(static_cast<size_t>(runs * run_codes));
  for (auto _ : state) {
    kernels::decode_affine(codes.data(), codes.size() / static_cast<size_t>(runs), params.data(), runs, run_codes, 32,
                           bits, out.data(), run_codes);
    benchmark::ClobberMemory();
  }
  state.counters["values/s"] = per_second(static_cast<double>(out.size()));
}
BENCHMARK(bm_decode_affine)
    ->ArgNames({"bits", "runs", "run_codes"})
    ->Args({2, 128, 64})
    ->Args({3, 128, 64})
    ->Args({4, 128, 64})
    ->Args({8, 128, 64})
    ->Args({2, 64, 32});

void bm_decode_codebook(benchmark::State& state) {
  const int bits = static_cast<int>(state.range(0)), streams = static_cast<int>(state.range(1));
  constexpr int kRows = 64, kDim = 64;
  const Buffer<std::byte> codes = codes_of(kRows, kDim, bits);
  const Buffer<uint16_t> norms(kRows, 0x3c00);
  const Buffer<float> levels = ramp(256);
  kernels::Codebook book;
  book.size = 1 << (bits * streams);
  book.levels = levels.data();
  Buffer<float> out(kRows * kDim);
  for (auto _ : state) {
    kernels::decode_codebook(codes.data(), streams == 2 ? codes.data() : nullptr, codes.size() / kRows, norms.data(),
                             0.125f, kRows, kDim, bits, book, out.data(), kDim);
    benchmark::ClobberMemory();
  }
  state.counters["values/s"] = per_second(static_cast<double>(out.size()));
}
BENCHMARK(bm_decode_codebook)
    ->ArgNames({"bits", "streams"})
    ->Args({2, 2})
    ->Args({2, 1})
    ->Args({3, 1})
    ->Args({4, 1})
    ->Args({4, 2});

void bm_decode_int8(benchmark::State& state) {
  constexpr int kRows = 64, kDim = 64;
  const Buffer<std::byte> codes = codes_of(kRows, kDim, 8);
  const Buffer<uint16_t> scales(kRows, 0x3c00);
  Buffer<float> out(kRows * kDim);
  for (auto _ : state) {
    kernels::decode_int8(codes.data(), scales.data(), kRows, kDim, out.data(), kDim);
    benchmark::ClobberMemory();
  }
  state.counters["values/s"] = per_second(static_cast<double>(out.size()));
}
BENCHMARK(bm_decode_int8);

[[maybe_unused]] const int context = [] {
  benchmark::AddCustomContext("instruction_set", std::string(kernels::instruction_set()));
  return 0;
}();

}  // namespace
