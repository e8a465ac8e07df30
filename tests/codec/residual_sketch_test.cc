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

ResidualSketch residual(int dim, int bits, SketchRows kind = SketchRows::gaussian, uint64_t seed = 42) {
  return {.dim = dim, .bits = bits, .kind = kind, .seed = seed};
}

/// Parts of a row: codes (absent with 1 bit), norm of the row, signs, norm of the rest.
struct Parts {
  int code, norm, signs, rest;
};
Parts parts_of(int bits) { return bits == 1 ? Parts{-1, 0, 1, 2} : Parts{0, 1, 2, 3}; }

float half_at(const Codec& codec, const Block& block, int part, int row) {
  uint16_t half;
  std::memcpy(&half, block.data() + codec.format().offset(part, row), sizeof half);
  return f32_from_f16(half);
}

Block part_bytes(const Codec& codec, const Block& block, int part, int rows) {
  Block out(static_cast<size_t>(rows) * codec.format().part_bytes[static_cast<size_t>(part)]);
  std::copy_n(block.data() + codec.format().offset(part, 0), out.size(), out.data());
  return out;
}

TEST(ResidualSketch, estimates_are_unbiased) {  // turboquant_prod acceptance 1
  if (kSanitized) GTEST_SKIP() << "statistics of many seeds";
  // Queries at 45 degrees from their keys, so that a shrunk estimate would show; one sample a seed is the mean error of
  // several pairs.
  constexpr int kDim = 128, kSeeds = 60, kPairs = 32;
  const Rows k = directions(kPairs, kDim, 1, 1);
  Rows q = directions(kPairs, kDim, 2, 1);
  for (size_t i = 0; i < q.x.size(); ++i) q.x[i] += k.x[i];
  for (SketchRows kind : kKinds) {
    for (int m : {64, 128}) {
      for (int bits = 1; bits <= 4; ++bits) {
        double sum = 0, squares = 0;
        for (uint64_t seed = 0; seed < kSeeds; ++seed) {
          ResidualSketch options = residual(kDim, bits, kind, seed);
          options.sketch_rows = m;
          const Rows logit = scores(*residual_sketch(options), k, q);
          double error = 0;
          for (int i = 0; i < kPairs; ++i) error += (logit.at(i, i) - dot(q.row(i), k.row(i), kDim)) / kPairs;
          sum += error;
          squares += error * error;
        }
        const double mean = sum / kSeeds, error = std::sqrt((squares / kSeeds - mean * mean) / kSeeds);
        EXPECT_LE(std::fabs(mean), 4 * error) << bits << " bits, m = " << m;
        EXPECT_LT(error, 0.01);  // turboquant_mse at 3 code bits would be 0.034 off
      }
    }
  }
}

TEST(ResidualSketch, error_of_inner_products) {  // turboquant_prod acceptance 2
  if (kSanitized) GTEST_SKIP() << "statistics of many rows";
  constexpr int kDim = 128, kSketches = 12;
  const Rows k = directions(400, kDim, 3, 1), q = directions(13, kDim, 4, 1);
  const auto mean_error = [&](auto&& make) {
    double sum = 0;
    for (uint64_t seed = 0; seed < kSketches; ++seed)
      sum += kDim * product_error(*make(seed), k, q).squared / kSketches;
    return sum;
  };
  const double gaussian[] = {1.563, 0.564, 0.181, 0.0531}, orthogonal[] = {0.565, 0.204, 0.066, 0.019};
  const double half_sketch[] = {3.14, 1.13, 0.377, 0.107}, unbiased[] = {0.565, 0.131, 0.035, 0.0094};
  for (int bits = 1; bits <= 4; ++bits) {
    const auto at = static_cast<size_t>(bits - 1);
    const auto error = [&](SketchRows kind, int m) {
      return mean_error([&](uint64_t seed) {
        ResidualSketch options = residual(kDim, bits, kind, seed);
        options.sketch_rows = m;
        return residual_sketch(options);
      });
    };
    EXPECT_NEAR(error(SketchRows::gaussian, 128) / gaussian[at], 1, 0.05) << bits;
    EXPECT_NEAR(error(SketchRows::gaussian, 64) / half_sketch[at], 1, 0.05) << bits;
    EXPECT_NEAR(error(SketchRows::orthogonal, 128) / orthogonal[at], 1, 0.05) << bits;
    const double scalar = mean_error([&](uint64_t seed) {
      LloydRow options = lloyd(kDim, bits, Stage2::none, seed);
      options.rotation = Rotation::haar;
      options.norm = NormMode::unbiased;
      return lloyd_row(options);
    });
    EXPECT_NEAR(scalar / unbiased[at], 1, 0.05) << bits;
  }
}

TEST(ResidualSketch, with_one_bit_it_is_the_sketch_of_the_rotated_row) {  // turboquant_prod acceptance 3
  for (int dim : {12, 80, 128}) {
    for (SketchRows kind : kKinds) {
      const ResidualSketch options = residual(dim, 1, kind);
      const auto codec = residual_sketch(options);
      const auto sketch = sign_sketch({.dim = dim, .rows = dim, .kind = kind, .seed = options.seed});
      const Rows k = gaussian_rows(64, dim, 5), q = gaussian_rows(3, dim, 6);
      Rows turned_k = k, turned_q = q;
      const auto rotation = haar(dim, options.seed, options.stream);
      rotation->forward(64, k.x.data(), dim, turned_k.x.data(), dim);
      rotation->forward(3, q.x.data(), dim, turned_q.x.data(), dim);
      const Block a = encode_blocks(*codec, k)[0], b = encode_blocks(*sketch, turned_k)[0];
      const Parts parts = parts_of(1);
      EXPECT_EQ(part_bytes(*codec, a, parts.signs, 64), part_bytes(*sketch, b, 0, 64));
      EXPECT_EQ(part_bytes(*codec, a, parts.rest, 64), part_bytes(*sketch, b, 1, 64));
      EXPECT_LT(relative_l2(scores(*codec, k, q).x, scores(*sketch, turned_k, turned_q).x), 1e-6);
    }
  }
}

TEST(ResidualSketch, scaling_a_key_scales_its_norms_and_scores_alone) {  // turboquant_prod acceptance 4
  const Rows k = gaussian_rows(64, 80, 7), q = gaussian_rows(3, 80, 8);
  for (int bits : {1, 2, 4}) {
    const auto codec = residual_sketch(residual(80, bits));
    const Parts parts = parts_of(bits);
    const Block one = encode_blocks(*codec, k)[0];
    const Rows logit = scores(*codec, k, q);
    for (int exponent : {-4, 3, 8}) {
      const float factor = std::ldexp(1.0f, exponent);
      Rows scaled = k;
      for (float& v : scaled.x) v *= factor;
      const Block other = encode_blocks(*codec, scaled)[0];
      for (int part : {parts.code, parts.signs}) {
        if (part >= 0) {
          EXPECT_EQ(part_bytes(*codec, other, part, 64), part_bytes(*codec, one, part, 64));
        }
      }
      for (int part : {parts.norm, parts.rest}) {
        for (int r = 0; r < 64; ++r) EXPECT_EQ(half_at(*codec, other, part, r), factor * half_at(*codec, one, part, r));
      }
      const Rows larger = scores(*codec, scaled, q);
      for (size_t i = 0; i < logit.x.size(); ++i) EXPECT_EQ(larger.x[i], factor * logit.x[i]);
    }
  }
}

TEST(ResidualSketch, without_the_rest_it_is_the_code_of_one_bit_less) {  // turboquant_prod acceptance 5
  const Rows k = gaussian_rows(64, 80, 9), q = gaussian_rows(3, 80, 10);
  for (int bits : {2, 3, 5, 8}) {
    const auto codec = residual_sketch(residual(80, bits));
    LloydRow options = lloyd(80, bits - 1);
    options.rotation = Rotation::haar;
    const auto code = lloyd_row(options);
    Block block = encode_blocks(*codec, k)[0];
    EXPECT_EQ(part_bytes(*codec, block, 0, 64), part_bytes(*code, encode_blocks(*code, k)[0], 0, 64));
    const Rows with_rest = scores(*codec, {block}, 64, q);
    std::fill_n(block.data() + codec->format().offset(3, 0), 128, std::byte{0});
    const Rows alone = scores(*codec, {block}, 64, q);
    EXPECT_EQ(alone.x, scores(*code, k, q).x);
    EXPECT_NE(alone.x, with_rest.x);
    EXPECT_EQ(decode_blocks(*codec, {block}, 64).x, round_trip(*code, k).x);
  }
}

TEST(ResidualSketch, bytes_are_the_formulas) {  // turboquant_prod acceptance 6
  EXPECT_EQ(residual_sketch(residual(128, 2))->bytes(1000) + int8_row(128)->bytes(1000), 166000u);
  for (const auto& [bits, bytes] : {std::pair{1, 20u}, {2, 36u}, {3, 52u}, {4, 68u}, {8, 132u}}) {
    EXPECT_EQ(residual_sketch(residual(128, bits))->bytes(1), bytes) << bits;
  }
  ResidualSketch options = residual(128, 2);
  options.sketch_rows = 60;
  EXPECT_EQ(residual_sketch(options)->bytes(1), 16u + 8 + 4);
  EXPECT_EQ(residual_sketch(residual(128, 2))->name(), "codebook1+sketch128");
  EXPECT_EQ(residual_sketch(residual(128, 1))->name(), "sketch128");
}

TEST(ResidualSketch, a_lattice_point_leaves_no_rest) {
  const auto codec = residual_sketch(residual(1, 2));  // one channel: the code is its sign, the norm its magnitude
  Rows k(3, 1);
  k.x = {2, -0.75f, 0};
  const Block block = encode_blocks(*codec, k)[0];
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(half_at(*codec, block, 3, r), 0);
    EXPECT_EQ(block[codec->format().offset(2, r)], std::byte{1});
  }
  EXPECT_EQ(round_trip(*codec, k).x, k.x);
}

TEST(ResidualSketch, tiny_dims_zero_rows_and_long_rows) {
  for (int dim : {1, 2, 3, 5, 16}) {
    for (int bits : {1, 2, 5, 8}) {
      const auto codec = residual_sketch(residual(dim, bits, SketchRows::orthogonal));
      Rows k = gaussian_rows(8, dim, 11);
      std::fill_n(k.row(0), dim, 0.0f);
      for (int c = 0; c < dim; ++c) k.at(1, c) = 1e6f;
      const Rows y = round_trip(*codec, k), logit = scores(*codec, k, gaussian_rows(2, dim, 12));
      for (int c = 0; c < dim; ++c) EXPECT_EQ(y.at(0, c), 0);
      EXPECT_EQ(logit.at(0, 0), 0);
      for (float v : y.x) EXPECT_TRUE(std::isfinite(v));
      for (float v : logit.x) EXPECT_TRUE(std::isfinite(v));
      for (int r = 2; r < 8; ++r) {
        const double length = std::sqrt(dot(k.row(r), k.row(r), dim));
        for (int c = 0; c < dim && bits >= 5; ++c) EXPECT_NEAR(y.at(r, c), k.at(r, c), 0.1 * length);
      }
    }
  }
}

TEST(ResidualSketch, sealed_blocks_score_the_same_and_open_again) {
  int codecs = 0;
  for (int dim : {12, 64, 96, 128}) {
    for (int bits : {1, 2, 4}) {
      const auto codec = residual_sketch(residual(dim, bits));
      const Rows k = gaussian_rows(64, dim, 13), q = gaussian_rows(20, dim, 14);
      const Block plain = encode_blocks(*codec, k)[0];
      Block block = sealed(*codec, plain);
      if (block.empty()) continue;
      ++codecs;
      std::vector<float> prep(static_cast<size_t>(20 * codec->floats().query)), logit(20 * 64),
          tile(static_cast<size_t>(codec->floats().tile));
      codec->prepare_query(q.x.data(), 20, prep.data());
      codec->score(prep.data(), 20, {block.data(), 1}, {0, 64}, logit.data(), 64, tile.data());
      EXPECT_LT(relative_l2(logit, scores(*codec, {plain}, 64, q).x), 3e-4) << dim << " " << bits;
      codec->unseal(block.data());
      EXPECT_EQ(block, plain);
    }
  }
  EXPECT_EQ(codecs, 9) << "12 has no layout 1";
}

TEST(ResidualSketch, bad_arguments_are_refused) {
  EXPECT_THROW(residual_sketch(residual(0, 2)), QuantizerConfigError);
  EXPECT_THROW(residual_sketch(residual(64, 0)), QuantizerConfigError);
  EXPECT_THROW(residual_sketch(residual(64, 9)), QuantizerConfigError);
  ResidualSketch options = residual(64, 2);
  options.sketch_rows = 1025;
  EXPECT_THROW(residual_sketch(options), QuantizerConfigError);
}

}  // namespace
}  // namespace veloxquant::test
