// Packed codes in the forms of core/layout.h, layout 0, to and from a byte a code. On the way to attention they are
// read by the kernels instead.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.h"

namespace veloxquant {

/// Packs `runs` runs of n codes, one after the other, into packed_bytes(packing, n, bits) bytes each; unused high bits
/// become zero. What is packed are the `bits` bits from `shift` on of each code.
void pack_runs(const uint8_t* codes, int runs, int n, int bits, Packing packing, std::byte* out, int shift = 0);

inline void pack_run(const uint8_t* codes, int n, int bits, Packing packing, std::byte* out) {
  pack_runs(codes, 1, n, bits, packing, out);
}
/// The reverse of pack_run.
void unpack_run(const std::byte* in, int n, int bits, Packing packing, uint8_t* codes);

}  // namespace veloxquant
