// Bytes as the state of a cache: refused or restored, and what is restored can be used. The hash is made right, so that
// the parser behind it is reached.
#include <xxhash.h>

#include <cstring>
#include <span>
#include <vector>

#include "core/check.h"
#include "veloxquant/cache.h"
#include "veloxquant/errors.h"

using namespace veloxquant;

namespace {

constexpr size_t kHashAt = 12, kBodyAt = 20;

KVCache make(uint8_t choice) {
  static const char* const kMethods[] = {"exact", "kivi(group=8,residual=16)", "turboquant_rvq"};
  return KVCache(parse_method(kMethods[choice % 3]), {1, 2, 16, 16, 0, DType::f32});
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
  cache.trim(3);
  return 0;
}
