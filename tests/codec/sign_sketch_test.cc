#include "codec/sign_sketch.h"

#include <numbers>

#include <gtest/gtest.h>

#include "codec/map/orthogonal_map.h"
#include "codec_util.h"
#include "core/half.h"
#include "support/sanitizer.h"
#include "support/tensors.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

constexpr SketchRows kKinds[] = {SketchRows::gaussian, SketchRows::orthogonal};

SignSketch sketch(int dim, int rows, SketchRows kind, uint64_t seed = 42) {
  return {.dim = dim, .rows = rows, .kind = kind, .seed = seed};
}

/// Bits of a row, those that pad the last byte included.
std::vector<unsigned> bits_of(const Codec& codec, const Block& block, int row) {
  std::vector<unsigned> bits;
  const std::byte* bytes = block.data() + codec.format().offset(0, row);
  for (size_t i = 0; i < 8 * codec.format().part_bytes[0]; ++i) {
    bits.push_back(static_cast<unsigned>(bytes[i / 8]) >> (i % 8) & 1u);
  }
  return bits;
}

float norm_of(const Codec& codec, const Block& block, int row) {
  uint16_t norm;
  std::memcpy(&norm, block.data() + codec.format().offset(1, row), sizeof norm);
  return f32_from_f16(norm);
}

double c_of(int dim) { return 1 / (dim * sketch_scale(dim, dim, SketchRows::orthogonal)); }

TEST(SignSketch, the_constant_of_orthogonal_rows) {
  const std::pair<int, double> cases[] = {{1, 1},          {4, 0.848826},    {64, 0.8010072}, {80, 0.8003818},
                                          {96, 0.7999651}, {128, 0.7994444}, {256, 0.7986641}};
  for (const auto& [dim, c] : cases) EXPECT_NEAR(c_of(dim), c, 1e-6) << dim;
}

TEST(SignSketch, estimates_are_unbiased) {  // qjl acceptance 1
  if (kSanitized) GTEST_SKIP() << "statistics of many seeds";
  constexpr int kDim = 64, kSeeds = 800;
  const Rows k = directions(1, kDim, 1, 1);
  Rows q = directions(1, kDim, 2, 0.6);
  for (int c = 0; c < kDim; ++c) q.at(0, c) += 0.8f * k.at(0, c);
  const double exact = dot(q.row(0), k.row(0), kDim);
  for (SketchRows kind : kKinds) {
    for (int m : {32, 100, 128, 512}) {
      double sum = 0, squares = 0;
      for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        const double estimate = scores(*sign_sketch(sketch(kDim, m, kind, seed)), k, q).at(0, 0);
        sum += estimate;
        squares += estimate * estimate;
      }
      const double mean = sum / kSeeds, error = std::sqrt((squares / kSeeds - mean * mean) / kSeeds);
      EXPECT_NEAR(mean, exact, 4 * error) << m << (kind == SketchRows::gaussian ? " gaussian" : " orthogonal");
      EXPECT_LT(error, 0.06);
    }
  }
}

TEST(SignSketch, variance) {  // qjl acceptance 2
  if (kSanitized) GTEST_SKIP() << "statistics of many rows";
  constexpr int kDim = 128, kSketches = 12;
  const Rows k = directions(500, kDim, 3, 1), q = directions(10, kDim, 4, 1);
  double products = 0;
  for (int i = 0; i < q.rows; ++i) {
    for (int r = 0; r < k.rows; ++r) products += std::pow(dot(q.row(i), k.row(r), kDim), 2) / q.rows / k.rows;
  }
  for (int m : {64, 128, 300}) {
    double gaussian = 0;
    for (uint64_t seed = 0; seed < kSketches; ++seed) {
      gaussian += product_error(*sign_sketch(sketch(kDim, m, SketchRows::gaussian, seed)), k, q).squared / kSketches;
    }
    EXPECT_NEAR(gaussian * m / (std::numbers::pi / 2 - products), 1, 0.05) << m;
  }
  double orthogonal = 0;
  for (uint64_t seed = 0; seed < kSketches; ++seed) {
    orthogonal +=
        product_error(*sign_sketch(sketch(kDim, kDim, SketchRows::orthogonal, seed)), k, q).squared / kSketches;
  }
  EXPECT_NEAR(orthogonal * kDim / 0.5647, 1, 0.05);
}

TEST(SignSketch, decoded_rows_of_orthogonal_sketches_have_one_length) {  // qjl acceptance 3
  for (int dim : {1, 2, 4, 12, 64, 80, 128, 256}) {
    const Rows k = gaussian_rows(60, dim, 5, 3),
               y = round_trip(*sign_sketch(sketch(dim, 0, SketchRows::orthogonal)), k);
    for (int r = 0; r < k.rows; ++r) {
      const double before = std::sqrt(dot(k.row(r), k.row(r), dim)), after = std::sqrt(dot(y.row(r), y.row(r), dim));
      EXPECT_NEAR(after / before * c_of(dim), 1, 1e-3) << dim;
    }
  }
}

TEST(SignSketch, of_a_rotation_it_is_the_one_bit_code) {  // qjl acceptance 4
  for (int dim : {32, 128}) {
    const Rows k = gaussian_rows(64, dim, 6);
    LloydRow options = lloyd(dim, 1);
    options.rotation = Rotation::haar;
    const auto code = lloyd_row(options);
    // S = sqrt(dim) * rotation; the factor goes into the scale.
    const auto signs = sign_sketch(haar(dim, options.seed, options.stream),
                                   std::sqrt(dim) * sketch_scale(dim, dim, SketchRows::orthogonal), {});
    const Block a = encode_blocks(*code, k)[0], b = encode_blocks(*signs, k)[0];
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + 64 * dim / 8, b.begin()));
    Rows expected = round_trip(*code, k);
    for (float& v : expected.x) v /= static_cast<float>(c_of(dim) * c_of(dim));
    EXPECT_LT(relative_l2(round_trip(*signs, k).x, expected.x), 2.5e-3);
  }
}

TEST(SignSketch, large_errors_are_rare) {  // qjl acceptance 5
  constexpr int kDim = 64, kRows = 30;
  EXPECT_EQ(std::ceil(4.0 / 3 * 1.5 / 0.25 * std::log(2 / 0.05)), kRows);
  const Rows k = directions(100, kDim, 7, 1), q = directions(10, kDim, 8, 1);
  int large = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Rows logit = scores(*sign_sketch(sketch(kDim, kRows, SketchRows::gaussian, seed)), k, q);
    for (int i = 0; i < q.rows; ++i) {
      for (int r = 0; r < k.rows; ++r) large += std::fabs(logit.at(i, r) - dot(q.row(i), k.row(r), kDim)) > 0.5;
    }
  }
  EXPECT_LE(large, 500) << "of 10000";
  EXPECT_GT(large, 0);
}

TEST(SignSketch, correlation_with_exact_products) {  // qjl acceptance 6
  if (kSanitized) GTEST_SKIP() << "statistics of many rows";
  constexpr int kDim = 128, kSketches = 6;
  const Rows k = gaussian_rows(500, kDim, 9), q = gaussian_rows(10, kDim, 10);
  const double expected[2][3] = {{0.62, 0.75, 0.85}, {0.80, 0.89, 0.93}};
  for (SketchRows kind : kKinds) {
    for (int i = 0; i < 3; ++i) {
      double correlation = 0;
      for (uint64_t seed = 0; seed < kSketches; ++seed) {
        correlation += product_error(*sign_sketch(sketch(kDim, kDim << i, kind, seed)), k, q).correlation / kSketches;
      }
      EXPECT_NEAR(correlation, expected[static_cast<size_t>(kind)][i], 0.02) << (kDim << i);
    }
  }
}

TEST(SignSketch, fewer_rows_are_the_first_of_more) {
  const Rows k = gaussian_rows(3, 80, 11);
  for (SketchRows kind : kKinds) {
    const auto few = sign_sketch(sketch(80, 50, kind)), many = sign_sketch(sketch(80, 200, kind));
    const Block a = encode_blocks(*few, k)[0], b = encode_blocks(*many, k)[0];
    for (int r = 0; r < 3; ++r) {
      const auto bits = bits_of(*few, a, r), more = bits_of(*many, b, r);
      EXPECT_TRUE(std::equal(bits.begin(), bits.begin() + 50, more.begin()));
    }
  }
}

TEST(SignSketch, seed_and_stream_choose_the_rows_and_rotations_share_none) {
  const Rows k = gaussian_rows(64, 64, 12);
  const auto bytes = [&](const SignSketch& options) { return encode_blocks(*sign_sketch(options), k)[0]; };
  for (SketchRows kind : kKinds) {
    const SignSketch options = sketch(64, 64, kind);
    SignSketch other = options;
    EXPECT_EQ(bytes(options), bytes(other));
    other.stream = 1;
    EXPECT_NE(bytes(options), bytes(other));
    other = options;
    ++other.seed;
    EXPECT_NE(bytes(options), bytes(other));
  }
  // A sketch that were the Gaussian matrix of the rotation, or the rotation itself, would repeat the 1-bit code's
  // signs.
  LloydRow rotated = lloyd(64, 1);
  rotated.rotation = Rotation::haar;
  const Block code = encode_blocks(*lloyd_row(rotated), k)[0], signs = bytes(sketch(64, 64, SketchRows::orthogonal));
  int equal = 0;
  for (size_t i = 0; i < 64 * 8; ++i) {
    equal += 8 - std::popcount(static_cast<unsigned>(code[i] ^ signs[i]));
  }
  EXPECT_NEAR(equal / 4096.0, 0.5, 0.1);
}

TEST(SignSketch, zero_rows_long_rows_and_padding) {
  for (SketchRows kind : kKinds) {
    const auto codec = sign_sketch(sketch(20, 100, kind));
    Rows x = gaussian_rows(4, 20, 13);
    std::fill_n(x.row(0), 20, 0.0f);
    for (int c = 0; c < 20; ++c) x.at(1, c) *= 1e-30f;
    for (int c = 0; c < 20; ++c) x.at(2, c) = 3e38f;
    const Block block = encode_blocks(*codec, x)[0];
    for (int r = 0; r < 4; ++r) {
      const auto bits = bits_of(*codec, block, r);
      ASSERT_EQ(bits.size(), 104u);
      for (size_t i = 100; i < 104; ++i) EXPECT_EQ(bits[i], 0u);
      for (size_t i = 0; r < 2 && i < 100; ++i) EXPECT_EQ(bits[i], 1u);
    }
    EXPECT_EQ(norm_of(*codec, block, 0), 0);
    EXPECT_EQ(norm_of(*codec, block, 1), 0);
    EXPECT_EQ(norm_of(*codec, block, 2), 65504);
    const Rows q = gaussian_rows(2, 20, 14), y = round_trip(*codec, x), logit = scores(*codec, x, q);
    for (int c = 0; c < 20; ++c) EXPECT_EQ(y.at(0, c), 0);
    for (float v : y.x) EXPECT_TRUE(std::isfinite(v));
    EXPECT_EQ(logit.at(0, 0), 0);
    EXPECT_EQ(logit.at(1, 1), 0);
    // The padding of the last byte never counts: setting it changes nothing.
    Block padded = block;
    padded[codec->format().offset(0, 3) + 12] |= std::byte{0xf0};
    EXPECT_EQ(scores(*codec, {padded}, 4, q).x, logit.x);
  }
}

TEST(SignSketch, sealed_blocks_score_the_same_and_open_again) {
  int codecs = 0;
  for (int dim : {32, 64, 80, 128}) {
    for (int m : {dim, 2 * dim, 4 * dim}) {
      const auto codec = sign_sketch(sketch(dim, m, SketchRows::orthogonal));
      const Rows k = gaussian_rows(64, dim, 15), q = gaussian_rows(9, dim, 16);
      const Block plain = encode_blocks(*codec, k)[0];
      Block block = sealed(*codec, plain), at_once(plain.size());
      ASSERT_EQ(codec->encode_block(k.view(0, 64), at_once.data()), !block.empty());
      if (block.empty()) continue;
      ++codecs;
      EXPECT_EQ(block, at_once);
      std::vector<float> prep(static_cast<size_t>(9 * codec->floats().query)), logit(9 * 64),
          tile(static_cast<size_t>(codec->floats().tile));
      codec->prepare_query(q.x.data(), 9, prep.data());
      codec->score(prep.data(), 9, {block.data(), 1}, {0, 64}, logit.data(), 64, tile.data());
      EXPECT_LT(relative_l2(logit, scores(*codec, {plain}, 64, q).x), 3e-4) << dim << " " << m;
      codec->unseal(block.data());
      EXPECT_EQ(block, plain);
    }
  }
  EXPECT_EQ(codecs, 11) << "80 projections would need padding";
}

TEST(SignSketch, bytes_name_and_bad_arguments) {
  EXPECT_EQ(sign_sketch(sketch(128, 128, SketchRows::orthogonal))->bytes(1), 18u);
  EXPECT_EQ(sign_sketch(sketch(128, 0, SketchRows::orthogonal))->bytes(1000), 18000u);
  EXPECT_EQ(sign_sketch(sketch(128, 512, SketchRows::orthogonal))->bytes(1), 66u);
  EXPECT_EQ(sign_sketch(sketch(128, 100, SketchRows::gaussian))->bytes(1), 15u);
  EXPECT_EQ(sign_sketch(sketch(128, 100, SketchRows::gaussian))->name(), "sketch100");
  EXPECT_THROW(sign_sketch(sketch(0, 8, SketchRows::gaussian)), QuantizerConfigError);
  EXPECT_THROW(sign_sketch(sketch(64, -1, SketchRows::gaussian)), QuantizerConfigError);
  EXPECT_THROW(sign_sketch(sketch(64, 1025, SketchRows::gaussian)), QuantizerConfigError);
}

}  // namespace
}  // namespace veloxquant::test
