// Writing packed codes: the forms of core/layout.h, layout 0. Reading them back is the kernels' work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.h"

namespace veloxquant {

/// Packs one run of n codes of `bits` bits into packed_bytes(packing, n, bits) bytes; unused high bits become zero.
void pack_run(const uint8_t* codes, int n, int bits, Packing packing, std::byte* out);

}  // namespace veloxquant
