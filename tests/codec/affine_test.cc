#include <cfloat>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "codec/affine_code.h"
#include "codec_util.h"
#include "kernels/kernels.h"
#include "core/half.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

struct Group {
  AffineParams params;
  std::vector<uint8_t> codes;

  bool wide() const { return params.scale & 0x8000; }
  double zero() const { return wide() ? f32_from_bf16(params.zero) : f32_from_f16(params.zero); }
  double scale() const {
    const uint16_t s = params.scale & 0x7fff;
    return wide() ? f32_from_bf16(s) : f32_from_f16(s);
  }
  double decoded(size_t i) const { return zero() + scale() * codes[i]; }
};

Group encode(const std::vector<float>& x, int bits) {
  Group group;
  group.codes.resize(x.size());
  uint16_t params[2];
  const int m = static_cast<int>(x.size());
  kernels::encode_affine_rows(x.data(), m, 1, m, m, bits, group.codes.data(), params);
  group.params = {params[0], params[1]};
  return group;
}

/// |x - decoded| <= s / 2 + 2^-11 (|z| + L s), with bf16 parameters 2^-8, and the spacing of fp16's subnormals.
void expect_bound(const std::vector<float>& x, int bits) {
  const Group group = encode(x, bits);
  const double last = (1 << bits) - 1, rounding = group.wide() ? 0x1p-8 : 0x1p-11;
  const double bound = group.scale() / 2 + rounding * (std::fabs(group.zero()) + last * group.scale()) + last * 0x1p-24;
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_LE(group.codes[i], last);
    ASSERT_TRUE(std::isfinite(group.decoded(i)));
    ASSERT_LE(std::fabs(double{x[i]} - group.decoded(i)), bound * (1 + 1e-6)) << "bits " << bits << " x " << x[i];
  }
}

std::vector<float> normals(int m, uint64_t seed, float sigma = 1, float offset = 0) {
  std::vector<float> x = gaussian_rows(1, m, seed, sigma).x;
  for (float& v : x) v += offset;
  return x;
}

TEST(AffineCode, error_bound_on_all_kinds_of_groups) {
  for (int bits = 2; bits <= 8; ++bits) {
    for (int m : {1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 128}) {
      const uint64_t seed = static_cast<uint64_t>(100 * bits + m);
      expect_bound(normals(m, seed), bits);
      expect_bound(normals(m, seed, 1e-3f), bits);
      expect_bound(normals(m, seed, 1, 1000), bits);  // huge offset
      expect_bound(normals(m, seed, 1, -60000), bits);
      expect_bound(normals(m, seed, 1e-6f), bits);   // scales are fp16 subnormals
      expect_bound(normals(m, seed, 1e-30f), bits);  // range below every fp16
      expect_bound(normals(m, seed, 1e-42f), bits);  // fp32 subnormals
      expect_bound(normals(m, seed, 40000), bits);   // beyond fp16
      expect_bound(normals(m, seed, 1e30f), bits);
      expect_bound(std::vector<float>(static_cast<size_t>(m), 3.5f), bits);
      std::vector<float> outlier = normals(m, seed);
      outlier[static_cast<size_t>(m) / 2] = 1000;
      expect_bound(outlier, bits);
    }
  }
}

TEST(AffineCode, range_beyond_fp16_is_taken_in_fp32) {  // BL-078
  for (int bits : {2, 3, 4, 8}) {
    std::vector<float> x(32, 0.0f);
    x[0] = -40000;
    x[31] = 40000;
    const Group group = encode(x, bits);
    EXPECT_FALSE(group.wide());
    EXPECT_NEAR(group.decoded(0), -40000, 20);
    EXPECT_NEAR(group.decoded(31), 40000, 40);
    expect_bound(x, bits);
  }
}

TEST(AffineCode, parameters_are_bf16_exactly_where_fp16_ends) {
  EXPECT_FALSE(encode({-65504, 0}, 2).wide());
  EXPECT_TRUE(encode({-65536, 0}, 2).wide());
  EXPECT_TRUE(encode({0, 65536.0f * 3}, 2).wide());
  EXPECT_FALSE(encode({0, 65504.0f * 3}, 2).wide());
  const Group constant = encode({-131072, -131072}, 4);
  EXPECT_TRUE(constant.wide());
  EXPECT_EQ(constant.decoded(1), -131072);
}

TEST(AffineCode, largest_fp32_range_does_not_overflow) {
  for (int bits : {1, 2, 4, 8}) {
    const Group group = encode({-3e38f, 0, 1e38f, 3e38f}, bits);
    EXPECT_TRUE(group.wide());
    EXPECT_TRUE(std::isfinite(group.zero()) && std::isfinite(group.scale()));
    EXPECT_EQ(group.codes[0], 0);
    EXPECT_EQ(group.codes[3], (1 << bits) - 1);
    if (bits == 1) continue;
    EXPECT_NEAR(group.decoded(2) / 1e38, 1, 6.0 / ((1 << bits) - 1) / 2 + 0.05);
  }
}

TEST(AffineCode, constant_groups_decode_exactly) {  // BL-083
  for (int bits = 1; bits <= 8; ++bits) {
    for (float value : {0.0f, -0.0f, 3.5f, -7.0f}) {
      const Group group = encode(std::vector<float>(32, value), bits);
      EXPECT_EQ(group.scale(), 0);
      for (size_t i = 0; i < 32; ++i) {
        EXPECT_EQ(group.codes[i], 0);
        EXPECT_EQ(group.decoded(i), value);
      }
    }
  }
}

TEST(AffineCode, one_bit_is_two_means) {
  const Group group = encode({-1, -1.5f, -0.5f, 2, 3, 4}, 1);
  EXPECT_EQ(group.zero(), -1);
  EXPECT_EQ(group.zero() + group.scale(), 3);
  EXPECT_EQ(group.codes, (std::vector<uint8_t>{0, 0, 0, 1, 1, 1}));
  const Group tie = encode({0, 1, 2}, 1);  // 1 lies on the boundary: the lower cell
  EXPECT_EQ(tie.codes, (std::vector<uint8_t>{0, 0, 1}));
}

TEST(AffineCode, encoding_what_was_decoded_changes_nothing) {
  // Of wide groups only up to 4 bits: above, rounding a scale to bf16 moves the largest value by half a step.
  for (int bits = 2; bits <= 8; ++bits) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const Group group = encode(normals(32, seed, seed % 2 == 0 && bits <= 4 ? 1e5f : 1), bits);
      std::vector<float> decoded;
      for (size_t i = 0; i < 32; ++i) decoded.push_back(static_cast<float>(group.decoded(i)));
      EXPECT_EQ(encode(decoded, bits).codes, group.codes);
    }
  }
}

TEST(AffineCode, quotients_on_a_half_go_to_the_even_code) {
  const Group group = encode({0, 0.5f, 1.5f, 2.5f, 3}, 2);
  EXPECT_EQ(group.scale(), 1);
  EXPECT_EQ(group.codes, (std::vector<uint8_t>{0, 0, 2, 2, 3}));
}

TEST(Affine, distortion_on_normal_data_is_the_table) {  // kivi acceptance 1
  struct Case {
    int bits, group;
    double mse;
  };
  const Case cases[] = {{2, 16, 0.107},    {2, 32, 0.154},    {2, 64, 0.202},   {2, 128, 0.250},  {3, 16, 0.0194},
                        {3, 32, 0.0282},   {3, 64, 0.0370},   {3, 128, 0.0456}, {4, 16, 0.00423}, {4, 32, 0.00615},
                        {4, 64, 0.00800},  {4, 128, 0.00995}, {8, 16, 1.47e-5}, {8, 32, 2.12e-5}, {8, 64, 2.77e-5},
                        {8, 128, 3.43e-5}, {1, 32, 0.326}};
  const Rows x = gaussian_rows(2048, 128, 11);
  for (const Case& c : cases) {
    for (const auto& codec : {affine_row(128, c.bits, c.group), affine_block(128, c.bits, c.group)}) {
      const double mse = mean_squared_error(x, round_trip(*codec, x));
      EXPECT_NEAR(mse / c.mse, 1, 0.03) << c.bits << " bits, group " << c.group;
    }
  }
}

TEST(Affine, channel_outliers_want_groups_along_tokens) {  // kivi acceptance 4
  Rows x = gaussian_rows(1024, 128, 12);
  for (int r = 0; r < x.rows; ++r) {
    for (int c : {7, 77}) x.at(r, c) += 20;
    for (int c : {40, 80}) x.at(r, c) -= 20;
  }
  const double block = mean_squared_error(x, round_trip(*affine_block(128, 2, 32), x));
  const double row = mean_squared_error(x, round_trip(*affine_row(128, 2, 32), x));
  EXPECT_LE(block, 0.25);
  EXPECT_GE(block, 0.12);
  EXPECT_GE(row, 5);
  EXPECT_LE(row, 20);
}

TEST(Affine, scaling_a_channel_leaves_the_codes_of_the_others) {  // kivi acceptance 5
  const auto codec = affine_block(64, 2, 32);
  const Rows x = gaussian_rows(128, 64, 13);
  Rows scaled = x;
  for (int r = 0; r < x.rows; ++r) scaled.at(r, 9) *= 100;
  const Rows before = round_trip(*codec, x), after = round_trip(*codec, scaled);
  for (int r = 0; r < x.rows; ++r) {
    for (int c = 0; c < 64; ++c) {
      if (c == 9) continue;
      ASSERT_EQ(before.at(r, c), after.at(r, c));
    }
  }
}

TEST(Affine, decoding_equals_the_group_code) {  // BL-070, BL-071: ragged groups, every width
  for (int dim : {1, 12, 80, 96, 128, 160}) {
    const Rows x = gaussian_rows(64, dim, 14);
    for (int bits = 1; bits <= 8; ++bits) {
      for (int group : {8, 20, 32, 64, 100, 200}) {
        const Rows row = round_trip(*affine_row(dim, bits, group), x);
        for (int r = 0; r < 3; ++r) {
          for (int first = 0; first < dim; first += group) {
            const int m = std::min(group, dim - first);
            const Group expected = encode({x.row(r) + first, x.row(r) + first + m}, bits);
            for (int c = 0; c < m; ++c) {
              ASSERT_FLOAT_EQ(row.at(r, first + c), static_cast<float>(expected.decoded(static_cast<size_t>(c))));
            }
          }
        }
        if (group > 64) continue;
        const int units = 64 / group;
        Rows whole(units * group, dim);
        std::copy_n(x.x.begin(), whole.x.size(), whole.x.begin());
        const Rows block = round_trip(*affine_block(dim, bits, group), whole);
        for (int u = 0; u < units; ++u) {
          std::vector<float> run;
          for (int r = 0; r < group; ++r) run.push_back(whole.at(u * group + r, dim - 1));
          const Group expected = encode(run, bits);
          for (int r = 0; r < group; ++r) {
            ASSERT_FLOAT_EQ(block.at(u * group + r, dim - 1),
                            static_cast<float>(expected.decoded(static_cast<size_t>(r))));
          }
        }
      }
    }
  }
}

TEST(Affine, every_level_appears) {  // BL-097
  for (int bits = 1; bits <= 8; ++bits) {
    Rows x(1, 256);
    for (int c = 0; c < 256; ++c) x.at(0, c) = static_cast<float>(c % (1 << bits));
    const Rows y = round_trip(*affine_row(256, bits, 256), x);
    EXPECT_EQ(std::set<float>(y.x.begin(), y.x.end()).size(), size_t{1} << bits);
  }
}

TEST(Affine, quantised_keys_are_not_exact) {  // BL-089
  const Rows x = gaussian_rows(192, 64, 15), y = round_trip(*affine_block(64, 2, 32), x);
  EXPECT_GT(distortion(x, y).error, 0.05);
  for (int r = 0; r < x.rows; ++r) EXPECT_FALSE(std::equal(x.row(r), x.row(r) + 64, y.row(r)));
}

TEST(Affine, zeros_come_back_as_zeros) {  // BL-083
  for (const auto& codec : {affine_row(80, 2, 32), affine_block(80, 2, 32), affine_row(80, 8, 32), int8_row(80)}) {
    Rows x = gaussian_rows(128, 80, 16);
    for (int c = 0; c < 80; ++c) x.at(5, c) = 0;
    for (int r = 0; r < 128; ++r) x.at(r, 3) = 0;
    const Rows y = round_trip(*codec, Rows(128, 80));
    for (float v : y.x) EXPECT_EQ(v, 0);
    for (float v : round_trip(*codec, x).x) EXPECT_TRUE(std::isfinite(v));
  }
}

TEST(Affine, bytes_are_the_formulas) {
  EXPECT_EQ(affine_block(128, 2, 32)->bytes(32), 128u * (8 + 4));
  EXPECT_EQ(affine_block(80, 3, 20)->bytes(40), 2u * 80 * (5 + 3 + 4));
  EXPECT_EQ(affine_row(128, 2, 32)->bytes(1), 32u + 16);
  EXPECT_EQ(affine_row(80, 4, 32)->bytes(10), 10u * (40 + 12));
  EXPECT_EQ(affine_row(64, 4, 128)->bytes(1), 32u + 4);
  EXPECT_EQ(int8_row(128)->bytes(3), 3u * 130);
  EXPECT_EQ(affine_block(128, 2, 32)->format().units, 4);
  EXPECT_EQ(affine_row(128, 2, 32)->format().units, 64);
}

TEST(Affine, bad_arguments_are_refused_all_at_once) {
  EXPECT_THROW(affine_row(128, 9, 32), QuantizerConfigError);
  EXPECT_THROW(affine_block(128, 2, 0), QuantizerConfigError);
  EXPECT_THROW(int8_row(0), QuantizerConfigError);
  try {
    affine_block(0, 0, 0);
    FAIL();
  } catch (const QuantizerConfigError& e) {
    EXPECT_EQ(e.problems().size(), 3u);
  }
}

TEST(Int8, distortion_on_normal_rows) {
  const Rows x = gaussian_rows(2000, 128, 17), y = round_trip(*int8_row(128), x);
  EXPECT_NEAR(distortion(x, y).error / 4.2e-5, 1, 0.05);
}

TEST(Int8, error_is_at_most_half_a_step_and_scales_never_overflow_codes) {
  for (float sigma : {1e-9f, 1e-6f, 1e-3f, 1.0f, 1e3f, 1e6f}) {
    const Rows x = gaussian_rows(64, 96, 18, sigma), y = round_trip(*int8_row(96), x);
    for (int r = 0; r < 64; ++r) {
      double largest = 0;
      for (int c = 0; c < 96; ++c) largest = std::max(largest, std::fabs(double{x.at(r, c)}));
      const double step = std::max(largest / 127 * 1.001, 0x1p-24) + 0x1p-24;
      for (int c = 0; c < 96; ++c) ASSERT_LE(std::fabs(double{x.at(r, c)} - y.at(r, c)), step / 2 * 1.0001);
    }
  }
  Rows huge(1, 4);
  huge.x = {1e30f, -1e30f, 1, 0};
  const Rows y = round_trip(*int8_row(4), huge);
  EXPECT_EQ(y.x, (std::vector<float>{127 * 65504.0f, -127 * 65504.0f, 0, 0}));
}

TEST(Raw, rows_come_back_in_their_element_type) {
  const Rows x = gaussian_rows(70, 65, 19);
  EXPECT_EQ(round_trip(*raw_rows(DType::f32, 65), x).x, x.x);
  const Rows half = round_trip(*raw_rows(DType::f16, 65), x), brain = round_trip(*raw_rows(DType::bf16, 65), x);
  for (size_t i = 0; i < x.x.size(); ++i) {
    EXPECT_EQ(half.x[i], f32_from_f16(f16_from_f32(x.x[i])));
    EXPECT_EQ(brain.x[i], f32_from_bf16(bf16_from_f32(x.x[i])));
  }
  EXPECT_EQ(raw_rows(DType::bf16, 65)->bytes(3), 3u * 130);
}

}  // namespace
}  // namespace veloxquant::test
