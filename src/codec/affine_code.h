// The asymmetric affine code of one group x_1..x_m of `bits` bits, L = 2^bits - 1:
//   zero = fp16(min x), scale = fp16((max x - min x) / L), code = clamp(round((x - zero) / scale), 0, L),
//   decoded zero + scale * code;  at 1 bit zero and zero + scale are the two means of 1-D 2-means instead.
// Codes are computed against the rounded parameters, so encoding what was decoded gives the same codes (2 bits and
// more). A group beyond fp16's range stores both parameters in bf16, told by the sign bit of its scale.
#pragma once

#include <cstdint>

namespace veloxquant {

struct AffineParams {
  uint16_t zero = 0, scale = 0;
};

/// The parameters are bf16.
constexpr bool is_wide(const AffineParams& params) { return (params.scale & 0x8000) != 0; }

}  // namespace veloxquant
