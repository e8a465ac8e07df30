#include "hosts/llama/rope_rules.h"

#include <gtest/gtest.h>

#include <cmath>

namespace veloxquant::llama {
namespace {

RopeFacts plain() {
  RopeFacts facts;
  facts.rotary_dim = 64;
  facts.mode = 2;
  facts.base = 10000;
  facts.original_context = 4096;
  return facts;
}

TEST(RopeRules, frequencies_fall_by_the_base) {
  const auto rope = rope_of(plain());
  ASSERT_TRUE(rope);
  EXPECT_FALSE(rope->interleaved);
  ASSERT_EQ(rope->frequencies.size(), 32u);
  EXPECT_EQ(rope->frequencies[0], 1);
  EXPECT_NEAR(rope->frequencies[16], 0.01, 1e-8);
  RopeFacts scaled = plain();
  scaled.mode = 0;
  scaled.frequency_scale = 0.25f;
  scaled.factors.assign(32, 2.0f);
  const auto slower = rope_of(scaled);
  ASSERT_TRUE(slower);
  EXPECT_TRUE(slower->interleaved);
  for (size_t i = 0; i < 32; ++i) EXPECT_NEAR(slower->frequencies[i], rope->frequencies[i] / 8, 1e-9);
}

TEST(RopeRules, yarn_leaves_fast_pairs_and_stretches_slow_ones) {
  RopeFacts facts = plain();
  facts.frequency_scale = 0.25f;
  facts.extrapolation = 1;
  const auto rope = rope_of(facts), unscaled = rope_of(plain());
  ASSERT_TRUE(rope);
  EXPECT_EQ(rope->frequencies.front(), unscaled->frequencies.front());
  EXPECT_NEAR(rope->frequencies.back() / unscaled->frequencies.back(), 0.25, 1e-6);
  for (size_t i = 1; i < 32; ++i) {
    const float share = rope->frequencies[i] / unscaled->frequencies[i];
    EXPECT_LE(share, rope->frequencies[i - 1] / unscaled->frequencies[i - 1] * 1.000001f);
    EXPECT_GE(share, 0.2499f);
  }
}

TEST(RopeRules, what_is_no_plain_rotation_has_no_frequencies) {
  for (const int mode : {1, 8, 24}) {
    RopeFacts facts = plain();
    facts.mode = mode;
    EXPECT_FALSE(rope_of(facts));
  }
  RopeFacts facts = plain();
  facts.rotary_dim = 0;
  EXPECT_FALSE(rope_of(facts));
  facts = plain();
  facts.base = 0;
  EXPECT_FALSE(rope_of(facts));
  facts = plain();
  facts.factors.assign(31, 1.0f);
  EXPECT_FALSE(rope_of(facts));
}

}  // namespace
}  // namespace veloxquant::llama
