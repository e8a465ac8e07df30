#include "codec/pack.h"

#include "kernels/kernels.h"

namespace veloxquant {
void pack_runs(const uint8_t* codes, int runs, int n, int bits, Packing packing, std::byte* out, int shift) {
  const Planes planes = planes_of(bits);
  const bool one_plane = packing == Packing::bit_string || planes.count == 1;
  if (one_plane && int64_t{n} * bits % 8 == 0 && int64_t{n} * runs <= INT32_MAX) {  // no gaps between runs
    n *= runs;
    runs = 1;
  }
  const size_t run_bytes = packed_bytes(packing, n, bits);
  if (packing == Packing::bit_string && planes.count > 1) {  // for 1, 2, 4 and 8 bits both forms agree
    for (int run = 0; run < runs; ++run, codes += n, out += run_bytes) {
      kernels::pack_bit_string(codes, n, shift, bits, out);
    }
    return;
  }
  for (int p = 0; p < planes.count; ++p) {
    kernels::pack_plane(codes, n, runs, n, shift, planes.width[p], out, static_cast<int64_t>(run_bytes));
    out += packed_bytes(Packing::planes, n, planes.width[p]);
    shift += planes.width[p];
  }
}

}  // namespace veloxquant
