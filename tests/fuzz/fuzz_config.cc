// Text as a configuration: refused with reasons that can be printed, or a configuration that survives being written and
// read again.
#include <string_view>

#include "core/check.h"
#include "veloxquant/config.h"
#include "veloxquant/errors.h"

using namespace veloxquant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const KVCacheConfig config = config_from_json({reinterpret_cast<const char*>(data), size});
    VQ_CHECK(config.problems().empty());
    VQ_CHECK(config_from_json(to_json(config)) == config);
    VQ_CHECK(!config.describe().empty());
  } catch (const QuantizerConfigError& error) {
    VQ_CHECK(!error.problems().empty());
    for (const std::string& problem : error.problems()) {
      VQ_CHECK(!problem.empty());
      for (char c : problem) VQ_CHECK(c >= 0x20 && c < 0x7f);
    }
  }
  return 0;
}
