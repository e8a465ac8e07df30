// Packed codes in the forms of core/layout.h, layout 0, to and from a byte a code. On the way to attention they are
// read by the kernels instead.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.h"

namespace veloxquant {

/// Packs one run of n codes of `bits` bits into packed_bytes(packing, n, bits) bytes; unused high bits become zero.
void pack_run(const uint8_t* codes, int n, int bits, Packing packing, std::byte* out);
/// The reverse.
void unpack_run(const std::byte* in, int n, int bits, Packing packing, uint8_t* codes);

}  // namespace veloxquant
