#include "codec/pack.h"

#include <algorithm>

namespace veloxquant {
namespace {

/// One byte of bits [shift, shift + width) of `count` codes.
template <int width>
std::byte pack_byte(const uint8_t* codes, int count, int shift) {
  constexpr unsigned kMask = (1u << width) - 1;
  unsigned byte = 0;
  for (int k = 0; k < count; ++k) byte |= (static_cast<unsigned>(codes[k]) >> shift & kMask) << (k * width);
  return static_cast<std::byte>(byte);
}

/// Bits [shift, shift + width) of each code as one plane; width divides 8.
template <int width>
std::byte* pack_plane(const uint8_t* codes, int n, int shift, std::byte* out) {
  constexpr int kPerByte = 8 / width;
  int first = 0;
  for (; first + kPerByte <= n; first += kPerByte) *out++ = pack_byte<width>(codes + first, kPerByte, shift);
  if (first < n) *out++ = pack_byte<width>(codes + first, n - first, shift);
  return out;
}

void pack_planes(const uint8_t* codes, int n, int bits, std::byte* out) {
  const Planes planes = planes_of(bits);
  int shift = 0;
  for (int p = 0; p < planes.count; ++p) {
    switch (planes.width[p]) {
      case 1:
        out = pack_plane<1>(codes, n, shift, out);
        break;
      case 2:
        out = pack_plane<2>(codes, n, shift, out);
        break;
      case 4:
        out = pack_plane<4>(codes, n, shift, out);
        break;
      default:
        out = pack_plane<8>(codes, n, shift, out);
        break;
    }
    shift += planes.width[p];
  }
}

void pack_bit_string(const uint8_t* codes, int n, int bits, std::byte* out) {
  uint32_t pending = 0;
  int filled = 0;
  for (int i = 0; i < n; ++i) {
    pending |= static_cast<uint32_t>(codes[i]) << filled;
    for (filled += bits; filled >= 8; filled -= 8, pending >>= 8) *out++ = static_cast<std::byte>(pending);
  }
  if (filled > 0) *out = static_cast<std::byte>(pending);
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

void pack_run(const uint8_t* codes, int n, int bits, Packing packing, std::byte* out) {
  if (packing == Packing::planes || same_form(bits)) {
    pack_planes(codes, n, bits, out);
  } else {
    pack_bit_string(codes, n, bits, out);
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
