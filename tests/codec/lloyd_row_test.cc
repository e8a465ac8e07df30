#include <numbers>
#include <set>

#include <gtest/gtest.h>

#include "codec/map/orthogonal_map.h"
#include "codec_util.h"
#include "core/half.h"
#include "core/layout.h"
#include "support/sanitizer.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

/// Codes of one part of an encoded row.
std::vector<unsigned> codes_of(const Codec& codec, const Block& block, int part, int row, int bits) {
  const CodeGrid grid{0, CodeOrder::rows, Packing::bit_string, bits, codec.dim(), 1};
  const std::byte* codes = block.data() + codec.format().offset(part, 0);
  std::vector<unsigned> out;
  for (int c = 0; c < codec.dim(); ++c) {
    const size_t bit = code_index(grid, row, c);
    unsigned code = 0;
    for (size_t k = 0; k < static_cast<size_t>(bits); ++k) {
      code |= (static_cast<unsigned>(codes[(bit + k) / 8]) >> ((bit + k) % 8) & 1u) << k;
    }
    out.push_back(code);
  }
  return out;
}

float norm_of(const Codec& codec, const Block& block, int row) {
  uint16_t norm;
  std::memcpy(&norm, block.data() + codec.format().offset(2, row), sizeof norm);
  return f32_from_f16(norm);
}

constexpr int kRows = 3000;

struct TwoStageCase {
  int dim, bits;
  Stage2 stage2;
  double error, cosine;
};

TEST(LloydRow, two_stage_error_and_cosine) {  // turboquant_rvq acceptance 1 and 6
  if (kSanitized) GTEST_SKIP() << "statistics of many rows";
  const TwoStageCase cases[] = {{128, 1, Stage2::joint, 0.1158, 0.9407},    {128, 1, Stage2::matched, 0.1285, 0.9362},
                                {128, 1, Stage2::laplace, 0.1732, 0.9162},  {128, 2, Stage2::joint, 0.0093, 0.9954},
                                {128, 2, Stage2::matched, 0.0188, 0.9911},  {128, 2, Stage2::laplace, 0.0477, 0.9770},
                                {128, 3, Stage2::matched, 0.00185, 0.9991}, {128, 3, Stage2::laplace, 0.0173, 0.9915},
                                {96, 1, Stage2::joint, 0.1155, 0},          {96, 2, Stage2::joint, 0.00925, 0},
                                {64, 1, Stage2::joint, 0.1145, 0},          {64, 2, Stage2::joint, 0.00913, 0},
                                {96, 1, Stage2::matched, 0.1280, 0},        {96, 2, Stage2::matched, 0.0186, 0},
                                {64, 1, Stage2::matched, 0.1270, 0},        {64, 2, Stage2::matched, 0.0180, 0}};
  for (const TwoStageCase& c : cases) {
    const auto codec = lloyd_row(lloyd(c.dim, c.bits, c.stage2));
    for (double length : {1e-3, 1.0, 1e3}) {
      const Rows x = directions(kRows, c.dim, 21, length);
      const Distortion d = distortion(x, round_trip(*codec, x));
      SCOPED_TRACE(std::to_string(c.dim) + " channels, " + std::to_string(c.bits) + " bits, table " +
                   std::to_string(static_cast<int>(c.stage2)));
      EXPECT_NEAR(d.error / c.error, 1, 0.02);
      if (c.cosine == 0) continue;
      EXPECT_NEAR(d.cosine, c.cosine, 0.0008);
      if (c.stage2 == Stage2::laplace && c.bits < 3) {
        EXPECT_NEAR(d.cosine, c.bits == 1 ? 0.92 : 0.9766, 0.004);  // what the reference publishes
      }
    }
  }
  const Rows x = directions(kRows, 128, 22, 1);
  EXPECT_NEAR(distortion(x, round_trip(*lloyd_row(lloyd(128, 3, Stage2::joint)), x)).error, 0.0006, 0.00005);
}

TEST(LloydRow, one_stage_signal_to_noise) {  // BL-091, BL-097, BL-098
  if (kSanitized) GTEST_SKIP() << "statistics of many rows";
  const double decibels[] = {4.40, 9.30, 14.62, 20.22};
  const double published[] = {0.3609, 0.1160, 0.0340, 0.0093};
  Rows laplace = gaussian_rows(kRows, 128, 23), uniform = laplace;
  const Random random(24, Purpose::probes, 0);
  for (size_t i = 0; i < laplace.x.size(); ++i) {
    const double u = random.uniform(i);
    laplace.x[i] = static_cast<float>(u < 0.5 ? std::log(2 * u) : -std::log(2 - 2 * u));
    uniform.x[i] = static_cast<float>(2 * u - 1);
  }
  for (int bits = 1; bits <= 4; ++bits) {
    for (const Rows& x : {gaussian_rows(kRows, 128, 25), laplace, uniform}) {
      const double error = distortion(x, round_trip(*lloyd_row(lloyd(128, bits)), x)).error;
      EXPECT_GE(-10 * std::log10(error), decibels[bits - 1] - 0.3);
      EXPECT_LE(-10 * std::log10(error), decibels[bits - 1] + 0.3);
      EXPECT_NEAR(error / published[bits - 1], 1, 0.025) << bits;
      EXPECT_LT(error, std::sqrt(3) * std::numbers::pi / 2 * std::pow(4, -bits));
      EXPECT_GT(error, std::pow(4, -bits));
    }
  }
  for (int bits = 5; bits <= 8; ++bits) {
    const double expected[] = {0.0025047, 0.00064424, 0.00016348, 0.00004119};
    const Rows x = gaussian_rows(500, 256, 26);
    const double error = distortion(x, round_trip(*lloyd_row(lloyd(256, bits)), x)).error;
    EXPECT_NEAR(error / expected[bits - 5], 1, 0.06) << bits;
  }
}

TEST(LloydRow, haar_error_and_cosine_whatever_the_rows) {  // turboquant_mse acceptance 1
  if (kSanitized) GTEST_SKIP() << "statistics of many rows";
  const double errors[] = {0.3609, 0.1160, 0.0340, 0.0093}, cosines[] = {0.800, 0.940, 0.983, 0.995};
  for (int bits = 1; bits <= 4; ++bits) {
    LloydRow options = lloyd(128, bits);
    options.rotation = Rotation::haar;
    const double error = errors[bits - 1];
    for (double length : {1e-3, 1.0, 1e3}) {
      const Rows x = directions(kRows, 128, 41, length);
      const Distortion d = distortion(x, round_trip(*lloyd_row(options), x));
      EXPECT_NEAR(d.error / error, 1, 0.02) << bits << " bits, length " << length;
      EXPECT_NEAR(d.cosine, cosines[bits - 1], 0.001);
      EXPECT_LT(d.error, std::sqrt(3) * std::numbers::pi / 2 * std::pow(4, -bits));
      EXPECT_GT(d.error, std::pow(4, -bits));
    }
    // All channels of a one-hot row, and one vector over and over: the mean over rotations.
    Rows one_hot(128, 128), repeated(1, 128);
    for (int r = 0; r < 128; ++r) one_hot.at(r, r) = 3;
    std::fill(repeated.x.begin(), repeated.x.end(), 0.7f);
    double mean_one_hot = 0, mean_repeated = 0;
    constexpr int kSeeds = 50;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      options.seed = seed;
      const auto codec = lloyd_row(options);
      mean_one_hot += distortion(one_hot, round_trip(*codec, one_hot)).error / kSeeds;
      mean_repeated += distortion(repeated, round_trip(*codec, repeated)).error / kSeeds;
    }
    EXPECT_NEAR(mean_one_hot / error, 1, 0.02) << bits;
    EXPECT_NEAR(mean_repeated / error, 1, 0.06) << bits << " bits: one row a seed";
  }
}

TEST(LloydRow, inner_products_shrink_unless_the_norm_is_unbiased) {  // turboquant_mse acceptance 3
  if (kSanitized) GTEST_SKIP() << "statistics of many rows";
  const Rows k = directions(1000, 128, 42, 1), q = directions(20, 128, 43, 1);
  for (const auto& [mode, error, slope] :
       {std::tuple{NormMode::paper, 0.116, 0.884}, {NormMode::unbiased, 0.131, 1.0}}) {
    ProductError mean;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      LloydRow options = lloyd(128, 2, Stage2::none, seed);
      options.rotation = Rotation::haar;
      options.norm = mode;
      const ProductError one = product_error(*lloyd_row(options), k, q);
      mean.squared += one.squared / 4;
      mean.slope += one.slope / 4;
    }
    EXPECT_NEAR(128 * mean.squared / error, 1, 0.05);
    EXPECT_NEAR(mean.slope, slope, 0.01);
  }
}

TEST(LloydRow, beats_the_uniform_quantiser) {  // BL-098
  const Rows x = gaussian_rows(512, 128, 27);
  for (int bits : {2, 3, 4}) {
    EXPECT_LT(mean_squared_error(x, round_trip(*lloyd_row(lloyd(128, bits)), x)),
              mean_squared_error(x, round_trip(*affine_row(128, bits, 128), x)));
  }
}

TEST(LloydRow, one_channel_rows_need_the_second_round) {
  for (Rotation rotation : {Rotation::rht, Rotation::haar}) {
    double error = 0;
    constexpr int kSeeds = 50;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      LloydRow options = lloyd(128, 2, Stage2::none, seed);
      options.rotation = rotation;
      Rows x(1, 128);
      x.at(0, static_cast<int>(seed)) = 5;
      error += distortion(x, round_trip(*lloyd_row(options), x)).error / kSeeds;
    }
    EXPECT_NEAR(error, 0.117, 0.012);
  }
  LloydRow one_round = lloyd(128, 2);
  one_round.rounds = 1;
  Rows x(1, 128);
  x.at(0, 7) = 5;
  EXPECT_NEAR(distortion(x, round_trip(*lloyd_row(one_round), x)).error, 0.261, 0.003);
}

TEST(LloydRow, dims_without_a_power_of_two) {  // BL-066, BL-068
  if (kSanitized) GTEST_SKIP() << "statistics of many rows";
  for (int dim : {12, 20, 28, 40, 56, 72, 80, 96, 100, 112, 160, 192, 256, 576}) {
    const Rows x = gaussian_rows(dim > 256 ? 200 : 1000, dim, 28);
    const auto rht_codec = lloyd_row(lloyd(dim, 4));
    LloydRow options = lloyd(dim, 4);
    options.rotation = Rotation::haar;
    const double error = distortion(x, round_trip(*rht_codec, x)).error;
    EXPECT_LE(error, 0.012) << dim;
    EXPECT_GE(error, 0.0075) << dim;
    EXPECT_NEAR(error / distortion(x, round_trip(*lloyd_row(options), x)).error, 1, 0.05) << dim;
  }
  const Rows q = gaussian_rows(1000, 80, 29), k = gaussian_rows(1000, 80, 30);
  const Rows y = round_trip(*lloyd_row(lloyd(80, 4)), k);
  double along = 0, energy = 0;
  for (int r = 0; r < 1000; ++r) {
    double exact = 0, coded = 0;
    for (int c = 0; c < 80; ++c) {
      exact += double{q.at(r, c)} * double{k.at(r, c)};
      coded += double{q.at(r, c)} * double{y.at(r, c)};
    }
    along += exact * coded;
    energy += exact * exact;
  }
  EXPECT_GT(along / energy, 0.98);
  EXPECT_LT(along / energy, 1.01);
}

TEST(LloydRow, outlier_channels_are_spread_as_by_haar) {  // BL-068
  if (kSanitized) GTEST_SKIP() << "statistics of many rows";
  for (int dim : {128, 192}) {
    Rows x = gaussian_rows(1500, dim, 31);
    for (int r = 0; r < x.rows; ++r) {
      for (int c = 3; c < dim; c += 32) x.at(r, c) *= 20;
    }
    for (int bits : {3, 4}) {
      double error[2] = {};
      for (int kind = 0; kind < 2; ++kind) {
        for (uint64_t seed = 0; seed < 4; ++seed) {
          LloydRow options = lloyd(dim, bits, Stage2::none, seed);
          options.rotation = kind == 0 ? Rotation::rht : Rotation::haar;
          error[kind] += distortion(x, round_trip(*lloyd_row(options), x)).error / 4;
        }
      }
      EXPECT_NEAR(error[0] / error[1], 1, 0.02) << dim << " " << bits;
    }
  }
}

TEST(LloydRow, joint_stages_are_one_index) {  // turboquant_rvq acceptance 3
  for (int dim : {64, 80, 128}) {
    const Rows x = gaussian_rows(64, dim, 32);
    for (int bits = 1; bits <= 4; ++bits) {
      const auto two = lloyd_row(lloyd(dim, bits, Stage2::joint)), one = lloyd_row(lloyd(dim, 2 * bits));
      const Block two_block = encode_blocks(*two, x)[0], one_block = encode_blocks(*one, x)[0];
      for (int r = 0; r < 64; ++r) {
        const auto high = codes_of(*two, two_block, 0, r, bits), low = codes_of(*two, two_block, 1, r, bits);
        std::vector<unsigned> index;
        for (size_t c = 0; c < high.size(); ++c) index.push_back(high[c] << bits | low[c]);
        ASSERT_EQ(index, codes_of(*one, one_block, 0, r, 2 * bits));
        ASSERT_EQ(norm_of(*two, two_block, r), norm_of(*one, one_block, r));
      }
      EXPECT_EQ(round_trip(*two, x).x, round_trip(*one, x).x);
    }
  }
}

TEST(LloydRow, first_stage_alone_is_the_one_stage_code) {  // turboquant_rvq acceptance 3
  for (int dim : {64, 128}) {
    const Rows x = gaussian_rows(64, dim, 33);
    for (int bits : {1, 2}) {
      const auto one = lloyd_row(lloyd(dim, bits));
      const Block expected = encode_blocks(*one, x)[0];
      for (Stage2 stage2 : {Stage2::matched, Stage2::laplace}) {
        const auto two = lloyd_row(lloyd(dim, bits, stage2));
        const Block block = encode_blocks(*two, x)[0];
        for (int r = 0; r < 64; ++r) ASSERT_EQ(codes_of(*two, block, 0, r, bits), codes_of(*one, expected, 0, r, bits));
      }
    }
    const auto joint = lloyd_row(lloyd(dim, 1, Stage2::joint)), matched = lloyd_row(lloyd(dim, 1, Stage2::matched));
    const Block a = encode_blocks(*joint, x)[0], b = encode_blocks(*matched, x)[0];
    for (int r = 0; r < 64; ++r) ASSERT_EQ(codes_of(*joint, a, 0, r, 1), codes_of(*matched, b, 0, r, 1));
  }
}

TEST(LloydRow, zero_and_tiny_rows) {
  for (Stage2 stage2 : {Stage2::none, Stage2::joint, Stage2::matched}) {
    const auto codec = lloyd_row(lloyd(80, 2, stage2));
    Rows x(4, 80);
    x.at(1, 3) = 1e-13f;  // below the zero rule
    x.at(2, 3) = 1e-8f;   // its norm rounds to zero in fp16
    x.at(3, 3) = 1e-30f;
    const Block block = encode_blocks(*codec, x)[0];
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(norm_of(*codec, block, r), 0);
      for (unsigned code : codes_of(*codec, block, 0, r, 2)) EXPECT_EQ(code, 0u);
    }
    for (float v : round_trip(*codec, x).x) EXPECT_EQ(v, 0);
  }
  const Rows small = directions(200, 128, 34, 5e-5);  // shorter than 1e-4, where the reference loses the length
  EXPECT_NEAR(distortion(small, round_trip(*lloyd_row(lloyd(128, 2)), small)).error, 0.116, 0.006);
}

TEST(LloydRow, long_rows_clamp) {
  Rows x = directions(4, 128, 35, 1e6);
  for (int c = 0; c < 128; ++c) x.at(3, c) = 3e38f;
  const auto codec = lloyd_row(lloyd(128, 4));
  const Block block = encode_blocks(*codec, x)[0];
  for (int r = 0; r < 4; ++r) EXPECT_EQ(norm_of(*codec, block, r), 65504);
  for (float v : round_trip(*codec, x).x) EXPECT_TRUE(std::isfinite(v));
}

TEST(LloydRow, norm_modes) {
  const Rows k = gaussian_rows(2000, 128, 36);
  LloydRow options = lloyd(128, 2);
  double error[3], slope[3];
  for (NormMode mode : {NormMode::paper, NormMode::lsq, NormMode::unbiased}) {
    options.norm = mode;
    const Rows y = round_trip(*lloyd_row(options), k);
    const size_t m = static_cast<size_t>(mode);
    error[m] = distortion(k, y).error;
    slope[m] = 0;
    for (int r = 0; r < k.rows; ++r) {
      double along = 0, energy = 0;
      for (int c = 0; c < 128; ++c) {
        along += double{k.at(r, c)} * double{y.at(r, c)};
        energy += double{k.at(r, c)} * double{k.at(r, c)};
      }
      slope[m] += along / energy / k.rows;
      if (mode == NormMode::unbiased) {
        EXPECT_NEAR(along / energy, 1, 6e-4);
      }
    }
  }
  EXPECT_NEAR(slope[0], 0.884, 0.003);
  EXPECT_NEAR(error[0], 0.116, 0.002);
  EXPECT_LE(error[1], error[0] * 1.0001);
  EXPECT_NEAR(error[1] / error[0], 1, 0.01);
  EXPECT_NEAR(slope[2], 1, 1e-4);
  EXPECT_NEAR(error[2], 0.131, 0.003);
}

TEST(LloydRow, every_level_appears) {  // BL-097
  // Cubes of normal numbers, turned back: the rotated rows reach far beyond the outermost levels.
  Rows x = gaussian_rows(64, 256, 37);
  for (float& v : x.x) v *= v * v;
  const LloydRow same = lloyd(256, 1);
  rht(256, same.rounds, same.seed, same.stream)->inverse(64, x.x.data(), 256, x.x.data(), 256);
  for (int bits = 1; bits <= 8; ++bits) {
    const auto codec = lloyd_row(lloyd(256, bits));
    const Block block = encode_blocks(*codec, x)[0];
    std::set<unsigned> seen;
    for (int r = 0; r < 64; ++r) {
      for (unsigned code : codes_of(*codec, block, 0, r, bits)) seen.insert(code);
    }
    EXPECT_EQ(seen.size(), size_t{1} << bits);
  }
  for (int bits = 1; bits <= 4; ++bits) {
    const auto codec = lloyd_row(lloyd(256, bits, Stage2::matched));
    const Block block = encode_blocks(*codec, x)[0];
    std::set<unsigned> seen;
    for (int r = 0; r < 64; ++r) {
      for (unsigned code : codes_of(*codec, block, 1, r, bits)) seen.insert(code);
    }
    EXPECT_EQ(seen.size(), size_t{1} << bits);
  }
}

TEST(LloydRow, tiny_dims) {
  for (int dim : {1, 2, 3, 4, 5, 7}) {
    for (int bits : {1, 2, 4, 8}) {
      const Rows x = gaussian_rows(200, dim, 39), y = round_trip(*lloyd_row(lloyd(dim, bits)), x);
      EXPECT_LE(distortion(x, y).error, 0.37 * std::pow(0.36, bits - 1)) << dim << " " << bits;
    }
    for (Stage2 stage2 : {Stage2::joint, Stage2::matched, Stage2::laplace}) {
      const Rows x = gaussian_rows(200, dim, 40), y = round_trip(*lloyd_row(lloyd(dim, 2, stage2)), x);
      EXPECT_LE(distortion(x, y).error, 0.06) << dim;
    }
  }
}

TEST(LloydRow, bytes_are_the_formulas) {
  EXPECT_EQ(lloyd_row(lloyd(128, 2))->bytes(1), 34u);
  EXPECT_EQ(lloyd_row(lloyd(128, 2, Stage2::joint))->bytes(1), 66u);
  EXPECT_EQ(lloyd_row(lloyd(128, 3, Stage2::matched))->bytes(10), 980u);
  EXPECT_EQ(lloyd_row(lloyd(81, 3))->bytes(1), 31u + 2);
  EXPECT_EQ(lloyd_row(lloyd(128, 3))->name(), "codebook3");
  EXPECT_EQ(lloyd_row(lloyd(128, 2, Stage2::laplace))->name(), "codebook4");
}

TEST(LloydRow, bad_arguments_are_refused) {
  EXPECT_THROW(lloyd_row(lloyd(0, 2)), QuantizerConfigError);
  EXPECT_THROW(lloyd_row(lloyd(128, 9)), QuantizerConfigError);
  EXPECT_THROW(lloyd_row(lloyd(128, 5, Stage2::joint)), QuantizerConfigError);
  LloydRow options = lloyd(128, 2);
  options.rounds = 0;
  EXPECT_THROW(lloyd_row(options), QuantizerConfigError);
}

}  // namespace
}  // namespace veloxquant::test
