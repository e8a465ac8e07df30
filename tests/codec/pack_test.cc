#include "codec/pack.h"

#include <vector>

#include <gtest/gtest.h>

#include "core/philox.h"

namespace veloxquant {
namespace {

unsigned bits_at(const std::vector<std::byte>& bytes, size_t bit, int width) {
  unsigned value = 0;
  for (int k = 0; k < width; ++k, ++bit) value |= (static_cast<unsigned>(bytes[bit / 8]) >> (bit % 8) & 1u) << k;
  return value;
}

unsigned code_at(const std::vector<std::byte>& bytes, const CodeGrid& grid, int row, int channel) {
  if (grid.packing == Packing::bit_string) return bits_at(bytes, code_index(grid, row, channel), grid.bits);
  const Planes planes = planes_of(grid.bits);
  unsigned code = 0;
  for (int p = 0, shift = 0; p < planes.count; shift += planes.width[p++]) {
    code |= bits_at(bytes, code_index(grid, row, channel, p), planes.width[p]) << shift;
  }
  return code;
}

TEST(Pack, code_index_finds_every_code_of_every_width_and_length) {
  const Random random(3, Purpose::probes, 0);
  for (Packing packing : {Packing::planes, Packing::bit_string}) {
    for (int bits = 1; bits <= 8; ++bits) {
      for (int n = 1; n <= 33; ++n) {
        const CodeGrid grid{0, CodeOrder::rows, packing, bits, n, 1};
        const size_t run = packed_bytes(packing, n, bits);
        std::vector<std::byte> bytes(3 * run + 1, std::byte{0xFF});
        std::vector<uint8_t> codes;
        for (int row = 0; row < 3; ++row) {
          for (int i = 0; i < n; ++i) {
            codes.push_back(static_cast<uint8_t>(random.word(codes.size()) & ((1u << bits) - 1)));
          }
          pack_run(codes.data() + row * n, n, bits, packing, bytes.data() + static_cast<size_t>(row) * run);
        }
        for (int row = 0; row < 3; ++row) {
          for (int i = 0; i < n; ++i) {
            ASSERT_EQ(code_at(bytes, grid, row, i), codes[static_cast<size_t>(row * n + i)]) << bits << " " << n;
          }
        }
        ASSERT_EQ(bytes.back(), std::byte{0xFF}) << "wrote past the run";
      }
    }
  }
}

TEST(Pack, unused_high_bits_are_zero) {
  for (Packing packing : {Packing::planes, Packing::bit_string}) {
    for (int bits = 1; bits <= 8; ++bits) {
      for (int n = 1; n <= 17; ++n) {
        const std::vector<uint8_t> codes(static_cast<size_t>(n), static_cast<uint8_t>((1 << bits) - 1));
        std::vector<std::byte> bytes(packed_bytes(packing, n, bits), std::byte{0xFF});
        pack_run(codes.data(), n, bits, packing, bytes.data());
        int ones = 0;
        for (std::byte b : bytes) ones += std::popcount(static_cast<unsigned>(b));
        EXPECT_EQ(ones, n * bits);
      }
    }
  }
}

TEST(Pack, least_significant_plane_first_and_low_bits_first) {
  const std::vector<uint8_t> codes = {5, 2, 7};  // 101 010 111
  std::byte bytes[2];
  pack_run(codes.data(), 3, 3, Packing::planes, bytes);
  EXPECT_EQ(bytes[0], std::byte{0b111001});  // low two bits: 01, 10, 11
  EXPECT_EQ(bytes[1], std::byte{0b101});     // high bits: 1, 0, 1
  pack_run(codes.data(), 3, 3, Packing::bit_string, bytes);
  EXPECT_EQ(bytes[0], std::byte{0b11010101});
  EXPECT_EQ(bytes[1], std::byte{0b1});
}

}  // namespace
}  // namespace veloxquant
