#include "codec/affine_code.h"

#include "kernels/kernels.h"

namespace veloxquant {

AffineParams affine_encode(const float* x, int m, int bits, uint8_t* codes) {
  uint16_t params[2];
  kernels::encode_affine_rows(x, m, 1, m, m, bits, codes, params);
  return {params[0], params[1]};
}

}  // namespace veloxquant
