// Bytes as the state of a cache: refused or restored, and what is restored can be used. The hash is made right, so that
// the parser behind it is reached.
#include <xxhash.h>

#include <cstring>
#include <iterator>
#include <span>
#include <vector>

#include "core/check.h"
#include "veloxquant/cache.h"
#include "veloxquant/errors.h"

using namespace veloxquant;

namespace {

constexpr size_t kHashAt = 12, kBodyAt = 20;

KVCache make(uint8_t choice) {
  static const char* const kMethods[] = {"exact",
                                         "kivi(group=8,residual=16)",
                                         "turboquant_rvq",
                                         "h2o(budget=24,grace=4)",
                                         "tova(budget=8)",
                                         "streaming_llm(window=16)",
                                         "kivi_sink(group=8,residual=16,n_sink=3)",
                                         "snapkv(budget=20)+kivi(group=8,residual=8)",
                                         "turboquant_mse(two_stream=true,outliers=3,calibration=10)"};
  return KVCache(parse_method(kMethods[choice % std::size(kMethods)]), {1, 2, 16, 16, 0, DType::f32});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  KVCache cache = make(data[0]);
  // Input: the body behind the header's hash; the header and the signature are those of the cache.
  const std::vector<std::byte> fresh = cache.state();
  std::vector<std::byte> bytes(fresh.begin(), fresh.end() - sizeof(uint32_t));
  bytes.resize(bytes.size() + size - 1);
  std::memcpy(bytes.data() + fresh.size() - sizeof(uint32_t), data + 1, size - 1);
  const uint64_t hash = XXH64(bytes.data() + kBodyAt, bytes.size() - kBodyAt, 0);
  std::memcpy(bytes.data() + kHashAt, &hash, sizeof hash);
  try {
    cache.set_state(bytes);
  } catch (const FormatError&) {
    VQ_CHECK(cache.empty());
    return 0;
  }
  VQ_CHECK(cache.state() == bytes);
  cache.decode(Side::key);
  // It goes on.
  if (cache.batch() > 0 && cache.offset() < 1 << 20) {
    const std::vector<float> rows(32 * static_cast<size_t>(cache.batch()), 0.5f);
    AttendIn in;
    in.q = Tensor::bshd(rows.data(), DType::f32, cache.batch(), 1, 2, 16);
    const Tensor one = Tensor::bshd(rows.data(), DType::f32, cache.batch(), 1, 1, 16);
    cache.step(in, one, one);
  }
  cache.trim(3);
  return 0;
}
