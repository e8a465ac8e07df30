// Bytes as a .npy file: refused or an array whose data is as large as its shape says.
#include "core/check.h"
#include "io/npy.h"
#include "veloxquant/errors.h"

using namespace veloxquant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const NpyArray array = parse_npy({reinterpret_cast<const std::byte*>(data), size}, "input");
    size_t elements = 1;
    for (int64_t n : array.shape) elements *= static_cast<size_t>(n);
    VQ_CHECK(array.data.size() == elements * size_of(array.type));
  } catch (const FormatError&) {
  }
  return 0;
}
