#include "codec/pack.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"

namespace veloxquant {
namespace {

/// A word of fields of `width` bits, each at the start of a cell of `cell` bits: two cells become one.
template <int width, int cell>
uint64_t merged(uint64_t fields) {
  constexpr uint64_t kEven = ((uint64_t{1} << width) - 1) * (~uint64_t{0} / ((uint64_t{1} << 2 * cell) - 1));
  return (fields & kEven) | (fields >> cell & kEven) << width;
}

/// The low `bits` bits of eight codes as one string.
template <int bits>
uint64_t bit_string_of(uint64_t codes) {
  const uint64_t pairs = merged<bits, 8>(codes), fours = merged<2 * bits, 16>(pairs);
  constexpr uint64_t kFour = (uint64_t{1} << 4 * bits) - 1;
  return (fours & kFour) | (fours >> 32 & kFour) << 4 * bits;
}

uint64_t load_word(const uint8_t* codes, size_t count) {
  uint64_t word = 0;  // little-endian, as everything stored
  std::memcpy(&word, codes, count);
  return word;
}

template <int bits>
void pack_bit_string(const uint8_t* codes, int64_t n, int shift, std::byte* out) {
  for (; n >= 8; n -= 8, codes += 8, out += bits) {
    const uint64_t word = bit_string_of<bits>(load_word(codes, 8) >> shift);
    std::memcpy(out, &word, bits);
  }
  if (n == 0) return;
  const uint64_t word = bit_string_of<bits>(load_word(codes, static_cast<size_t>(n)) >> shift);
  std::memcpy(out, &word, static_cast<size_t>((n * bits + 7) / 8));
}

void pack_bit_string(const uint8_t* codes, int64_t n, int bits, int shift, std::byte* out) {
  if (bits == 3) return pack_bit_string<3>(codes, n, shift, out);
  if (bits == 5) return pack_bit_string<5>(codes, n, shift, out);
  if (bits == 6) return pack_bit_string<6>(codes, n, shift, out);
  pack_bit_string<7>(codes, n, shift, out);
}

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
    for (int run = 0; run < runs; ++run, codes += n, out += run_bytes) pack_bit_string(codes, n, bits, shift, out);
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
