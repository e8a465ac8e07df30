// Encoding of rows of one head into packed blocks, one thread: bm_encode/<codec>/<dim>, and the whole way of a prefill
// chunk of fp16 rows through append and commit: bm_append_commit/<method>/<dim>. Bytes a second count the rows as fp16,
// two bytes an element, whatever they are stored in.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "veloxquant/cache.h"
#include "veloxquant/codecs.h"

namespace veloxquant {
namespace {

constexpr int kRows = 1024;

std::vector<float> gaussian(size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& value : x) value = normal(random);
  return x;
}

void bm_encode(benchmark::State& state, const std::function<std::shared_ptr<const Codec>(int)>& make, int dim) {
  const std::shared_ptr<const Codec> codec = make(dim);
  const BlockFormat& format = codec->format();
  const std::vector<float> x = gaussian(static_cast<size_t>(kRows * dim));
  std::vector<std::byte> block(format.block_bytes());
  for (auto _ : state) {
    for (int row = 0; row < kRows; row += format.capacity_rows()) {
      codec->encode({x.data() + int64_t{row} * dim, dim, format.capacity_rows(), dim}, block.data(), 0);
      benchmark::ClobberMemory();
    }
  }
  state.SetBytesProcessed(int64_t{2} * kRows * dim * state.iterations());
}

void bm_append_commit(benchmark::State& state, const std::string& method, int dim) {
  constexpr int kTokens = 256, kHeads = 3;
  const LayerShape shape{.kv_heads = kHeads, .q_heads = 9, .dim_k = dim, .dim_v = dim, .layer = 0, .input = DType::f16};
  std::vector<uint16_t> rows(static_cast<size_t>(kTokens * kHeads * dim));
  std::mt19937 random(1);
  for (uint16_t& half : rows) half = static_cast<uint16_t>(0x3000 + random() % 0x1000) | (random() % 2 ? 0x8000 : 0);
  const Tensor chunk = Tensor::bshd(rows.data(), DType::f16, 1, kTokens, kHeads, dim);
  KVCache cache(parse_method(method), shape);
  for (auto _ : state) {
    cache.append(chunk, chunk);
    cache.commit();
    if (cache.offset() < 8192) continue;
    state.PauseTiming();
    cache.reset();
    state.ResumeTiming();
  }
  state.SetBytesProcessed(int64_t{2} * 2 * kTokens * kHeads * dim * state.iterations());
}

LloydRow lloyd(int dim, int bits, Stage2 stage2) {
  LloydRow options;
  options.dim = dim;
  options.bits = bits;
  options.stage2 = stage2;
  return options;
}

const int registered = [] {
  using Make = std::function<std::shared_ptr<const Codec>(int)>;
  std::vector<std::pair<std::string, Make>> codecs;
  for (int bits : {1, 2, 3, 4, 8}) {
    codecs.push_back({"affine_block" + std::to_string(bits), [=](int dim) { return affine_block(dim, bits, 32); }});
  }
  for (int bits : {1, 2, 3, 4, 8}) {
    codecs.push_back({"affine_row" + std::to_string(bits), [=](int dim) { return affine_row(dim, bits, 32); }});
  }
  for (int bits : {1, 2, 3, 4, 8}) {
    codecs.push_back(
        {"lloyd_row" + std::to_string(bits), [=](int dim) { return lloyd_row(lloyd(dim, bits, Stage2::none)); }});
  }
  for (int bits : {2, 3}) {
    codecs.push_back(
        {"lloyd_joint" + std::to_string(bits), [=](int dim) { return lloyd_row(lloyd(dim, bits, Stage2::joint)); }});
  }
  codecs.push_back({"lloyd_matched2", [](int dim) { return lloyd_row(lloyd(dim, 2, Stage2::matched)); }});
  codecs.push_back({"int8_row", [](int dim) { return int8_row(dim); }});
  codecs.push_back({"f16", [](int dim) { return raw_rows(DType::f16, dim); }});
  codecs.push_back({"bf16", [](int dim) { return raw_rows(DType::bf16, dim); }});
  for (int dim : {64, 128, 96}) {
    const std::string tail = "/" + std::to_string(dim);
    for (const auto& [name, make] : codecs) {
      benchmark::RegisterBenchmark(("bm_encode/" + name + tail).c_str(), bm_encode, make, dim);
    }
    for (const char* method : {"exact", "turboquant_rvq", "kivi", "kivi(bits=4)"}) {
      benchmark::RegisterBenchmark((std::string("bm_append_commit/") + method + tail).c_str(), bm_append_commit, method,
                                   dim);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace veloxquant
