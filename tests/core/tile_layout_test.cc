#include "core/tile_layout.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

namespace veloxquant {
namespace {

std::vector<TileGrid> grids() {
  std::vector<TileGrid> all;
  for (Side side : kSides) {
    for (FieldOrder order : {FieldOrder::codebook, FieldOrder::affine}) {
      for (int bits : {1, 2, 3, 4, 8}) {
        for (int dim : {16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 576}) {
          if (TileGrid::exists(side, bits, dim)) all.push_back({side, order, bits, dim});
        }
      }
    }
  }
  return all;
}

TEST(TileLayout, every_bit_of_a_tile_belongs_to_one_code) {
  for (const TileGrid& grid : grids()) {
    std::vector<int> used(grid.bytes() * 8);
    for (int row = 0; row < kTileRows; ++row) {
      for (int c = 0; c < grid.dim; ++c) {
        const size_t at = tile_code_index(grid, row, c);
        for (int i = 0; i < grid.word_bits(); ++i) ++used.at(at + static_cast<size_t>(i));
        if (grid.bits == 3) ++used.at(tile_code_index(grid, row, c, 1));
      }
    }
    EXPECT_EQ(used, std::vector<int>(used.size(), 1)) << grid.bits << " bits, " << grid.dim;
  }
}

TEST(TileLayout, geometries_that_would_need_padding_have_none) {
  EXPECT_TRUE(TileGrid::exists(Side::key, 4, 80));
  EXPECT_TRUE(TileGrid::exists(Side::value, 3, 80));
  EXPECT_FALSE(TileGrid::exists(Side::key, 3, 80)) << "half a word of the narrow plane";
  EXPECT_FALSE(TileGrid::exists(Side::key, 1, 112));
  EXPECT_FALSE(TileGrid::exists(Side::value, 4, 72));
  EXPECT_FALSE(TileGrid::exists(Side::key, 5, 64));
  EXPECT_FALSE(TileGrid::exists(Side::key, 4, 2048));
}

// The published places, checked by hand: 4-bit keys of 128 channels.
TEST(TileLayout, known_places) {
  const TileGrid key{Side::key, FieldOrder::codebook, 4, 128};
  EXPECT_EQ(tile_code_index(key, 0, 0), 0u);
  EXPECT_EQ(tile_code_index(key, 0, 4), 4u) << "byte m holds elements m and m + 4";
  EXPECT_EQ(tile_code_index(key, 1, 0), 4u * 8) << "the next token is the next word";
  EXPECT_EQ(tile_code_index(key, 32, 0), 128u * 8);
  EXPECT_EQ(tile_code_index(key, 0, 8), (256u + 2 * 16) * 8) << "word 1, whose units are turned by 2";
  EXPECT_EQ(tile_code_index({Side::key, FieldOrder::affine, 4, 128}, 0, 1), 4u) << "neighbours share a byte";
  const TileGrid value{Side::value, FieldOrder::affine, 2, 128};
  EXPECT_EQ(tile_code_index(value, 32, 0), 8u);
  EXPECT_EQ(tile_code_index(value, 0, 64), 4u * 256 * 8) << "the second strip of channels";
}

TEST(TileLayout, operand_and_parameter_orders_are_permutations) {
  for (const TileGrid& grid : grids()) {
    const OperandOrder order = operand_order(grid);
    EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), 64u);
    std::set<int> parameters;
    for (int p = 0; p < 64; ++p) parameters.insert(parameter_order(grid.side, grid.bits, p));
    EXPECT_EQ(parameters.size(), 64u);
    EXPECT_EQ(*parameters.rbegin(), 63);
    // A group that is shorter than 64 uses the first entries alone.
    if (grid.side == Side::value) continue;
    const int least = grid.bits == 1 || grid.bits == 3 ? 32 : 16;
    for (int n = least; n < 64; n += least) {
      for (int p = 0; p < n; ++p) EXPECT_LT(order[static_cast<size_t>(p)], n);
    }
  }
}

}  // namespace
}  // namespace veloxquant
