#include "veloxquant/placement.h"

#include <climits>

#include <gtest/gtest.h>

namespace veloxquant {
namespace {

TEST(Placement, direct_codes_everything) {
  for (int rows : {0, 1, 7, 1000}) {
    for (Side side : kSides) EXPECT_EQ(direct()->frontier(side, rows), rows);
  }
}

TEST(Placement, unsealed_codes_nothing) {
  for (Side side : kSides) EXPECT_EQ(unsealed()->frontier(side, 1000), 0);
}

TEST(Placement, aligned_window_keeps_at_least_the_window_exact) {
  const auto placement = aligned_window(32, 128);
  for (Side side : kSides) {
    EXPECT_EQ(placement->frontier(side, 0), 0);
    EXPECT_EQ(placement->frontier(side, 159), 0);
    EXPECT_EQ(placement->frontier(side, 160), 32);
    EXPECT_EQ(placement->frontier(side, 700), 544);
  }
  EXPECT_EQ(aligned_window(32, 0)->frontier(Side::key, 95), 64);    // align-only
  EXPECT_EQ(aligned_window(1, 10)->frontier(Side::value, 95), 85);  // sliding
}

TEST(Placement, block_flush_is_algorithm_1) {
  const auto placement = block_flush(32, 128);
  EXPECT_EQ(placement->frontier(Side::key, 127), 0);
  EXPECT_EQ(placement->frontier(Side::key, 128), 128);
  EXPECT_EQ(placement->frontier(Side::key, 700), 640);
  EXPECT_EQ(placement->frontier(Side::value, 127), 0);
  EXPECT_EQ(placement->frontier(Side::value, 128), 0);
  EXPECT_EQ(placement->frontier(Side::value, 129), 1);
  EXPECT_EQ(placement->frontier(Side::value, 700), 572);
}

TEST(Placement, block_flush_rounds_the_window_up_to_whole_groups) {
  for (int window : {0, 1, 31, 32}) EXPECT_EQ(block_flush(32, window)->frontier(Side::value, 100), 68) << window;
  EXPECT_EQ(block_flush(32, 33)->frontier(Side::value, 100), 36);
  EXPECT_EQ(block_flush(32, 33)->frontier(Side::key, 200), 192);
  EXPECT_EQ(block_flush(32, 32)->frontier(Side::key, 200), 192);  // kivi acceptance 3: 8 keys and 32 values wait
  EXPECT_EQ(block_flush(32, 32)->frontier(Side::value, 200), 168);
  EXPECT_EQ(block_flush(32, INT_MAX)->frontier(Side::value, INT_MAX), 0);
}

TEST(Placement, frontiers_are_monotone_aligned_and_inside) {
  struct Case {
    std::shared_ptr<const Placement> placement;
    int key_unit;
  };
  const Case cases[] = {{direct(), 1},
                        {aligned_window(32, 128), 32},
                        {aligned_window(8, 0), 8},
                        {aligned_window(1, 5), 1},
                        {block_flush(32, 128), 32},
                        {block_flush(20, 50), 20}};
  for (const Case& c : cases) {
    for (Side side : kSides) {
      int before = 0;
      for (int rows = 0; rows < 700; ++rows) {
        const int frontier = c.placement->frontier(side, rows);
        EXPECT_GE(frontier, before);
        EXPECT_LE(frontier, rows);
        EXPECT_EQ(frontier % (side == Side::key ? c.key_unit : 1), 0);
        EXPECT_GE(c.placement->frontier(Side::key, rows), c.placement->frontier(Side::value, rows));
        before = frontier;
      }
    }
  }
}

}  // namespace
}  // namespace veloxquant
