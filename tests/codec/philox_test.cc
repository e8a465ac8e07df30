#include "core/philox.h"

#include <cmath>

#include <gtest/gtest.h>

namespace veloxquant {
namespace {

TEST(Philox, known_answers_of_the_published_vectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, ~uint64_t{0}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, counter_words_are_draw_index_purpose_zero) {
  const Random random(7, Purpose::signs, 3);
  EXPECT_EQ(random.words(11), philox4x32({11, 3, static_cast<uint32_t>(Purpose::signs), 0}, 7));
  const PhiloxWords words = random.words(2);
  EXPECT_EQ(random.word(4), words[0] | uint64_t{words[1]} << 32);
  EXPECT_EQ(random.word(5), words[2] | uint64_t{words[3]} << 32);
}

TEST(Philox, streams_share_no_numbers) {
  const uint64_t word = Random(1, Purpose::rotation, 0).word(0);
  EXPECT_NE(word, Random(2, Purpose::rotation, 0).word(0));
  EXPECT_NE(word, Random(1, Purpose::sketch, 0).word(0));
  EXPECT_NE(word, Random(1, Purpose::rotation, 1).word(0));
  EXPECT_NE(lane_key(1, 0, 0), lane_key(1, 1, 0));
  EXPECT_NE(lane_key(1, 0, 0), lane_key(1, 0, 1));
}

TEST(Philox, quantile_inverts_the_distribution_function) {
  for (double x = -8; x <= 8; x += 0.0625) {
    const double p = std::erfc(-x / std::sqrt(2.0)) / 2;
    if (p > 0.999) continue;  // above, p itself is too coarse to recover x
    EXPECT_NEAR(normal_quantile(p), x, 1e-12 * (1 + std::fabs(x))) << p;
  }
  EXPECT_EQ(normal_quantile(0.5), 0);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-14);
}

TEST(Philox, normals_have_unit_moments_and_uniforms_stay_inside) {
  const Random random(5, Purpose::probes, 0);
  constexpr int kCount = 100000;
  double mean = 0, second = 0, fourth = 0;
  for (uint64_t n = 0; n < kCount; ++n) {
    const double u = random.uniform(n), x = random.normal(n);
    ASSERT_TRUE(u > 0 && u < 1);
    mean += x / kCount;
    second += x * x / kCount;
    fourth += x * x * x * x / kCount;
  }
  EXPECT_NEAR(mean, 0, 0.015);
  EXPECT_NEAR(second, 1, 0.02);
  EXPECT_NEAR(fourth, 3, 0.15);
}

}  // namespace
}  // namespace veloxquant
