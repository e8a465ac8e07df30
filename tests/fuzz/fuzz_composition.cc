// Text as a composition: refused with a reason, or a method that builds or says why it can't.
#include <string_view>

#include "core/check.h"
#include "veloxquant/cache.h"
#include "veloxquant/errors.h"

using namespace veloxquant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const MethodSpec method = parse_method({reinterpret_cast<const char*>(data), size});
    const KVCache cache(method, {1, 1, 16, 16, 0, DType::f32});
  } catch (const QuantizerConfigError& error) {
    VQ_CHECK(!error.problems().empty());
    for (const std::string& problem : error.problems()) VQ_CHECK(!problem.empty());
  }
  return 0;
}
