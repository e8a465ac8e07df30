#include "codec/pack.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace veloxquant {
namespace {

const std::byte* unpack_plane(const std::byte* in, int n, int width, int shift, uint8_t* codes) {
  const int per_byte = 8 / width;
  const unsigned mask = (1u << width) - 1;
  for (int first = 0; first < n; first += per_byte, ++in) {
    unsigned byte = static_cast<unsigned>(*in);
    for (int i = first; i < std::min(n, first + per_byte); ++i, byte >>= width) {
      codes[i] = static_cast<uint8_t>(codes[i] | (byte & mask) << shift);
    }
  }
  return in;
}

void unpack_bit_string(const std::byte* in, int n, int bits, uint8_t* codes) {
  uint32_t pending = 0;
  int filled = 0;
  for (int i = 0; i < n; ++i, pending >>= bits, filled -= bits) {
    if (filled < bits) {
      pending |= static_cast<uint32_t>(*in++) << filled;
      filled += 8;
    }
    codes[i] = static_cast<uint8_t>(pending & ((1u << bits) - 1));
  }
}

bool same_form(int bits) { return (bits & (bits - 1)) == 0; }  // both agree for 1, 2, 4 and 8 bits

}  // namespace

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

void unpack_run(const std::byte* in, int n, int bits, Packing packing, uint8_t* codes) {
  if (packing == Packing::bit_string && !same_form(bits)) return unpack_bit_string(in, n, bits, codes);
  std::fill_n(codes, n, uint8_t{0});
  const Planes planes = planes_of(bits);
  int shift = 0;
  for (int p = 0; p < planes.count; ++p) {
    in = unpack_plane(in, n, planes.width[p], shift, codes);
    shift += planes.width[p];
  }
}

}  // namespace veloxquant
