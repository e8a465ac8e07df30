// What holds for every codec: scores and sums equal those over decoded rows, cuts change no bit, bytes do not depend on
// the call or on the instruction set.
#include <gtest/gtest.h>

#include "codec_util.h"
#include "kernels/targets.h"
#include "support/sanitizer.h"
#include "support/tensors.h"

#include <hwy/targets.h>

namespace veloxquant::test {
namespace {

constexpr int kDims[] = {12, 64, 80, 96, 128, 192, 256};
constexpr int kQueries[] = {1, 3, 8, 9, 40};

/// One full block of coded rows.
struct Coded {
  Coded(std::shared_ptr<const Codec> c, uint64_t seed)
      : codec(std::move(c)), rows(codec->format().capacity_rows()), x(gaussian_rows(rows, codec->dim(), seed)) {
    block = encode_blocks(*codec, x)[0];
    decoded = round_trip(*codec, x).x;
    tile.resize(static_cast<size_t>(codec->floats().tile));
  }

  std::vector<float> score(const Rows& q, Range range) {
    std::vector<float> prep(static_cast<size_t>(q.rows) * static_cast<size_t>(codec->floats().query));
    codec->prepare_query(q.x.data(), q.rows, prep.data());
    std::vector<float> logit(static_cast<size_t>(q.rows * range.size()), NAN);
    codec->score(prep.data(), q.rows, block.data(), range, logit.data(), range.size(), tile.data());
    return logit;
  }

  std::vector<float> accumulator(int n) const {
    return std::vector<float>(static_cast<size_t>(n) * static_cast<size_t>(codec->floats().acc));
  }

  /// `weight` has one column per row of the block.
  void accumulate(const Rows& weight, Range range, std::vector<float>* acc) {
    codec->accumulate(weight.x.data() + range.begin, weight.dim, weight.rows, block.data(), range, acc->data(),
                      tile.data());
  }

  std::shared_ptr<const Codec> codec;
  int rows;
  Rows x;
  Block block;
  std::vector<float> decoded, tile;
};

std::vector<Range> ranges(int rows) { return {{0, rows}, {0, 1}, {rows - 1, rows}, {3, 20}, {rows / 3, rows - 5}}; }

TEST(AllCodecs, scores_equal_those_of_decoded_rows) {
  for (int dim : kDims) {
    if (kSanitized && dim > 80) continue;
    for (const auto& codec : all_codecs(dim)) {
      Coded coded(codec, 50);
      for (int n : kQueries) {
        const Rows q = gaussian_rows(n, dim, 51);
        for (Range range : ranges(coded.rows)) {
          const std::vector<float> logit = coded.score(q, range);
          double error = 0, energy = 0;
          for (int i = 0; i < n; ++i) {
            for (int r = range.begin; r < range.end; ++r) {
              double dot = 0, qq = 0, kk = 0;
              for (int c = 0; c < dim; ++c) {
                const double a = q.at(i, c), b = coded.decoded[size_t(r * dim + c)];
                dot += a * b;
                qq += a * a;
                kk += b * b;
              }
              error += std::pow(logit[size_t(i * range.size() + r - range.begin)] - dot, 2);
              energy += qq * kk / dim;  // of an inner product of random directions: a single one may be near 0
            }
          }
          ASSERT_LE(std::sqrt(error / energy), 1e-5) << codec->name() << " dim " << dim << " n " << n;
        }
      }
    }
  }
}

TEST(AllCodecs, sums_equal_those_of_decoded_rows) {
  for (int dim : kDims) {
    if (kSanitized && dim > 80) continue;
    for (const auto& codec : all_codecs(dim)) {
      Coded coded(codec, 52);
      for (int n : kQueries) {
        const Rows weight = gaussian_rows(n, coded.rows, 53);
        for (Range range : ranges(coded.rows)) {
          std::vector<float> acc = coded.accumulator(n);
          coded.accumulate(weight, range, &acc);
          std::vector<float> out(static_cast<size_t>(n * dim), 1.0f);
          codec->finish(acc.data(), n, out.data());
          double error = 0, energy = 0;
          for (int i = 0; i < n; ++i) {
            for (int c = 0; c < dim; ++c) {
              double sum = 1;  // finish adds
              for (int r = range.begin; r < range.end; ++r) {
                sum += double{weight.at(i, r)} * double{coded.decoded[size_t(r * dim + c)]};
              }
              error += std::pow(out[size_t(i * dim + c)] - sum, 2);
              energy += sum * sum;
            }
          }
          ASSERT_LE(std::sqrt(error / energy), 1e-5) << codec->name() << " dim " << dim << " n " << n;
        }
      }
    }
  }
}

TEST(AllCodecs, cutting_a_range_changes_no_bit) {
  for (int dim : {12, 80, 128}) {
    for (const auto& codec : all_codecs(dim)) {
      Coded coded(codec, 54);
      const Range cuts[] = {{0, 1}, {1, 7}, {7, 33}, {33, 50}, {50, coded.rows}};
      for (int n : {1, 3, 9}) {
        const Rows q = gaussian_rows(n, dim, 55), weight = gaussian_rows(n, coded.rows, 56);
        const std::vector<float> whole = coded.score(q, {0, coded.rows});
        std::vector<float> sum = coded.accumulator(n), by_parts = sum;
        coded.accumulate(weight, {0, coded.rows}, &sum);
        for (Range cut : cuts) {
          const std::vector<float> part = coded.score(q, cut);
          for (int i = 0; i < n; ++i) {
            for (int r = cut.begin; r < cut.end; ++r) {
              ASSERT_EQ(part[size_t(i * cut.size() + r - cut.begin)], whole[size_t(i * coded.rows + r)])
                  << codec->name() << " dim " << dim << " n " << n;
            }
          }
          coded.accumulate(weight, cut, &by_parts);
        }
        ASSERT_EQ(sum, by_parts) << codec->name() << " dim " << dim << " n " << n;
      }
    }
  }
}

TEST(AllCodecs, knowing_the_next_block_changes_no_bit) {
  for (const auto& codec : all_codecs(80)) {
    Coded coded(codec, 65);
    const Block next = encode_blocks(*codec, gaussian_rows(coded.rows, 80, 66))[0];
    const Range range{1, coded.rows - 2};
    for (int n : {1, 4, 9}) {
      const Rows q = gaussian_rows(n, 80, 67), weight = gaussian_rows(n, coded.rows, 68);
      std::vector<float> prep(static_cast<size_t>(n * codec->floats().query));
      codec->prepare_query(q.x.data(), n, prep.data());
      std::vector<float> logit(static_cast<size_t>(n * range.size())), sum = coded.accumulator(n), acc = sum;
      BlockView block(coded.block.data());
      block.next = next.data();
      codec->score(prep.data(), n, block, range, logit.data(), range.size(), coded.tile.data());
      EXPECT_EQ(logit, coded.score(q, range)) << codec->name() << " n " << n;
      coded.accumulate(weight, range, &sum);
      codec->accumulate(weight.x.data() + range.begin, weight.dim, n, block, range, acc.data(), coded.tile.data());
      EXPECT_EQ(acc, sum) << codec->name() << " n " << n;
    }
  }
}

/// Codecs of both sides, with layout 1 where the size has one.
std::vector<std::shared_ptr<const Codec>> tiled_codecs(int dim, Arithmetic arithmetic) {
  std::vector<std::shared_ptr<const Codec>> all;
  for (Side side : kSides) {
    const CodecRole role{side, arithmetic};
    all.push_back(int8_row(dim, role));
    for (int bits : {1, 2, 3, 4, 8}) {
      all.push_back(lloyd_row({.dim = dim, .bits = bits, .role = role}));
      for (int group : {32, 64, 128}) {
        all.push_back(side == Side::key ? affine_block(dim, bits, group, role) : affine_row(dim, bits, group, role));
      }
    }
    for (int bits : {1, 2}) all.push_back(lloyd_row({.dim = dim, .bits = bits, .stage2 = Stage2::joint, .role = role}));
  }
  return all;
}

TEST(Tiles, a_block_is_sealed_at_once_or_later_and_opened_again_with_the_same_bytes) {
  int sealed_codecs = 0;
  for (int dim : {12, 64, 80, 96, 112, 128, 192, 256}) {
    for (const auto& codec : tiled_codecs(dim, Arithmetic::two_term)) {
      SCOPED_TRACE(codec->name() + " dim " + std::to_string(dim));
      const int capacity = codec->format().capacity_rows();
      const Rows x = gaussian_rows(capacity, dim, 71);
      Block plain = encode_blocks(*codec, x)[0];
      plain.resize(codec->format().block_bytes());
      Block sealed = plain, at_once(plain.size());
      const RowsView rows{x.x.data(), dim, capacity, dim};
      const bool seals = codec->seal(sealed.data());
      ASSERT_EQ(codec->encode_block(rows, at_once.data()), seals);
      if (!seals) continue;
      ++sealed_codecs;
      EXPECT_EQ(at_once, sealed);
      std::vector<float> a(x.x.size()), b(x.x.size());
      codec->decode(plain.data(), {0, capacity}, a.data(), dim);
      codec->decode({sealed.data(), 1}, {0, capacity}, b.data(), dim);
      EXPECT_EQ(a, b);
      codec->unseal(sealed.data());
      EXPECT_EQ(sealed, plain);
    }
  }
  EXPECT_EQ(sealed_codecs, 292) << "12, and sizes that would need padding, have none";
}

TEST(Tiles, attention_agrees_with_that_on_decoded_rows) {
  for (Arithmetic arithmetic : {Arithmetic::two_term, Arithmetic::int8}) {
    const double rounding = arithmetic == Arithmetic::two_term ? 3e-4 : 3e-2;
    for (int dim : {64, 80, 96, 112, 128, 192, 256}) {
      size_t index = 0;
      const auto all = tiled_codecs(dim, arithmetic);
      for (const auto& codec : all) {
        const bool is_key = index++ < all.size() / 2;
        const int capacity = codec->format().capacity_rows();
        Block block = encode_blocks(*codec, gaussian_rows(capacity, dim, 72))[0];
        block.resize(codec->format().block_bytes());
        Block sealed = block;
        if (!codec->seal(sealed.data())) continue;
        SCOPED_TRACE(codec->name() + " dim " + std::to_string(dim) + (is_key ? " key" : " value"));
        std::vector<float> tile(static_cast<size_t>(codec->floats().tile));
        for (const Range range : {Range{0, capacity}, {3, capacity - 2}, {7, 8}, {0, 64}}) {
          for (int n : {1, 3, 9}) {
            const auto floats = [](int a, int b) { return std::vector<float>(static_cast<size_t>(a * b)); };
            if (is_key) {
              const Rows q = gaussian_rows(n, dim, 73);
              std::vector<float> prep = floats(n, codec->floats().query), expected = floats(n, range.size());
              std::vector<float> got = expected;
              codec->prepare_query(q.x.data(), n, prep.data());
              codec->score(prep.data(), n, block.data(), range, expected.data(), range.size(), tile.data());
              codec->score(prep.data(), n, {sealed.data(), 1}, range, got.data(), range.size(), tile.data());
              EXPECT_LT(relative_l2(got, expected), rounding * (range.size() < 4 ? 20 : 1)) << n;
            } else {
              const Rows weight = gaussian_rows(n, range.size(), 74);
              std::vector<float> expected = floats(n, codec->floats().acc), got = expected;
              codec->accumulate(weight.x.data(), range.size(), n, block.data(), range, expected.data(), tile.data());
              codec->accumulate(weight.x.data(), range.size(), n, {sealed.data(), 1}, range, got.data(), tile.data());
              EXPECT_LT(relative_l2(got, expected), rounding * (range.size() < 4 ? 20 : 1)) << n;
            }
          }
        }
      }
    }
  }
}

TEST(Tiles, extreme_rows_stay_finite) {
  for (const auto& codec : tiled_codecs(64, Arithmetic::two_term)) {
    const int capacity = codec->format().capacity_rows();
    for (float size : {0.0f, 6e-8f, 65504.0f}) {
      Rows x = gaussian_rows(capacity, 64, 75);
      for (float& v : x.x) v = std::copysign(size, v);
      Block block = encode_blocks(*codec, x)[0];
      block.resize(codec->format().block_bytes());
      const uint8_t layout = codec->seal(block.data()) ? 1 : 0;
      const Rows q = gaussian_rows(2, 64, 76), weight = gaussian_rows(2, capacity, 77);
      std::vector<float> prep(2 * static_cast<size_t>(codec->floats().query)), logit(2 * static_cast<size_t>(capacity));
      std::vector<float> acc(2 * static_cast<size_t>(codec->floats().acc)),
          tile(static_cast<size_t>(codec->floats().tile));
      codec->prepare_query(q.x.data(), 2, prep.data());
      codec->score(prep.data(), 2, {block.data(), layout}, {0, capacity}, logit.data(), capacity, tile.data());
      codec->accumulate(weight.x.data(), capacity, 2, {block.data(), layout}, {0, capacity}, acc.data(), tile.data());
      for (float v : logit) ASSERT_TRUE(std::isfinite(v)) << codec->name() << " " << size;
      for (float v : acc) ASSERT_TRUE(std::isfinite(v)) << codec->name() << " " << size;
    }
  }
}

TEST(AllCodecs, logits_keep_their_stride_and_tiles_their_size) {
  const Rows q = gaussian_rows(9, 80, 57);
  for (const auto& codec : all_codecs(80)) {
    Coded coded(codec, 58);
    const size_t size = coded.tile.size();
    coded.tile.resize(size + 16, 12345.0f);
    std::vector<float> prep(9 * static_cast<size_t>(codec->floats().query));
    codec->prepare_query(q.x.data(), 9, prep.data());
    const Range range{2, coded.rows - 3};
    const int ld = range.size() + 5;
    for (int n : {2, 9}) {
      std::vector<float> logit(static_cast<size_t>(n * ld), 777.0f);
      codec->score(prep.data(), n, coded.block.data(), range, logit.data(), ld, coded.tile.data());
      const std::vector<float> dense = n == 9 ? coded.score(q, range) : std::vector<float>();
      for (int i = 0; i < n; ++i) {
        for (int r = 0; r < ld; ++r) {
          const float got = logit[size_t(i * ld + r)];
          if (r >= range.size()) {
            EXPECT_EQ(got, 777.0f);
          } else if (n == 9) {
            EXPECT_EQ(got, dense[size_t(i * range.size() + r)]);
          }
        }
      }
    }
    std::vector<float> acc = coded.accumulator(9);
    coded.accumulate(gaussian_rows(9, coded.rows, 59), {0, coded.rows}, &acc);
    for (size_t i = size; i < size + 16; ++i) EXPECT_EQ(coded.tile[i], 12345.0f) << codec->name();
  }
}

TEST(AllCodecs, decoding_a_range_is_a_part_of_decoding_all) {
  for (int dim : {12, 80, 128}) {
    for (const auto& codec : all_codecs(dim)) {
      const Coded coded(codec, 60);
      const Range range{5, coded.rows - 2};
      const int ld = dim + 3;
      std::vector<float> part(static_cast<size_t>(range.size() * ld), 777.0f);
      codec->decode(coded.block.data(), range, part.data(), ld);
      for (int r = range.begin; r < range.end; ++r) {
        const float* row = part.data() + (r - range.begin) * ld;
        for (int c = 0; c < dim; ++c) ASSERT_EQ(row[c], coded.decoded[size_t(r * dim + c)]) << codec->name();
        for (int c = dim; c < ld; ++c) ASSERT_EQ(row[c], 777.0f);
      }
    }
  }
}

TEST(AllCodecs, encoding_unit_by_unit_gives_the_same_bytes) {
  for (int dim : {12, 80, 81, 128}) {
    for (const auto& codec : all_codecs(dim)) {
      const BlockFormat& format = codec->format();
      const Rows x = gaussian_rows(format.capacity_rows(), dim, 61);
      Block one_by_one(format.block_bytes(), std::byte{0x5A});
      for (int u = format.units - 1; u >= 0; --u) {
        codec->encode(x.view(u * format.unit_rows, format.unit_rows), one_by_one.data(), u);
      }
      EXPECT_EQ(one_by_one, encode_blocks(*codec, x)[0]) << codec->name() << " dim " << dim;
    }
  }
}

TEST(AllCodecs, encoding_writes_nothing_but_its_units) {
  for (const auto& codec : all_codecs(80)) {
    const BlockFormat& format = codec->format();
    Block block(format.block_bytes() + 8, std::byte{0x5A}), untouched = block;
    const Rows x = gaussian_rows(format.unit_rows, 80, 62);
    codec->encode(x.view(0, format.unit_rows), block.data(), 1);
    for (int part = 0; part < BlockFormat::kParts; ++part) {
      const size_t bytes = format.part_bytes[static_cast<size_t>(part)];
      std::copy_n(block.data() + format.offset(part, 1), bytes, untouched.data() + format.offset(part, 1));
    }
    EXPECT_EQ(block, untouched) << codec->name();
  }
}

TEST(AllCodecs, encoded_bytes_do_not_depend_on_the_instruction_set) {
  const Rows x = gaussian_rows(128, 80, 63);
  std::vector<std::vector<Block>> best, least;
  for (const auto& codec : all_codecs(80)) best.push_back(encode_blocks(*codec, x));
  hwy::SetSupportedTargetsForTest(HWY_STATIC_TARGET);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  for (const auto& codec : all_codecs(80)) least.push_back(encode_blocks(*codec, x));
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_EQ(best, least);
}

TEST(AllCodecs, frozen_bytes) {
  // Any change of an encoder, a table or the generator changes these sums: stored caches would decode wrongly.
  const auto fnv = [](const std::vector<Block>& blocks) {
    uint64_t hash = 0xcbf29ce484222325;
    for (const Block& block : blocks) {
      for (std::byte b : block) hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3;
    }
    return hash;
  };
  Rows x(128, 80);  // plain integers, so that no library function enters
  uint32_t state = 1;
  for (float& v : x.x) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(static_cast<int>(state >> 20) - 2048) / 512;
  }
  EXPECT_EQ(fnv(encode_blocks(*affine_block(80, 2, 32), x)), 13407180813840129738u);
  EXPECT_EQ(fnv(encode_blocks(*affine_row(80, 3, 32), x)), 1206545771402376939u);
  EXPECT_EQ(fnv(encode_blocks(*int8_row(80), x)), 11664137873821369353u);
  EXPECT_EQ(fnv(encode_blocks(*lloyd_row(lloyd(80, 3)), x)), 14616620425606135214u);
  EXPECT_EQ(fnv(encode_blocks(*lloyd_row(lloyd(80, 2, Stage2::joint)), x)), 16783493143554704083u);
  EXPECT_EQ(fnv(encode_blocks(*lloyd_row(lloyd(80, 2, Stage2::matched)), x)), 9351739153016863197u);
}

TEST(AllCodecs, large_dot_products_do_not_overflow) {  // BL-079, BL-081
  Rows x(64, 128), q(1, 128);
  std::fill(x.x.begin(), x.x.end(), 40.0f);
  std::fill(q.x.begin(), q.x.end(), 40.0f);
  for (const auto& codec : {raw_rows(DType::f16, 128), raw_rows(DType::bf16, 128), int8_row(128)}) {
    std::vector<float> prep(128), tile(static_cast<size_t>(codec->floats().tile)), logit(64);
    const Block block = encode_blocks(*codec, x)[0];
    codec->prepare_query(q.x.data(), 1, prep.data());
    codec->score(prep.data(), 1, block.data(), {0, 64}, logit.data(), 64, tile.data());
    for (float v : logit) EXPECT_NEAR(v / 204800, 1, 1e-3);
  }
  Coded keys(affine_block(128, 4, 32), 64);
  for (float& v : q.x) v = 3000;
  const std::vector<float> logit = keys.score(q, {0, 32});
  for (int r = 0; r < 32; ++r) {
    double dot = 0;
    for (int c = 0; c < 128; ++c) dot += 3000 * double{keys.decoded[size_t(r * 128 + c)]};
    EXPECT_NEAR(logit[size_t(r)], dot, 1e-3 * std::fabs(dot) + 0.5);
  }
}

}  // namespace
}  // namespace veloxquant::test
