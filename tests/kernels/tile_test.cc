// Tiles on every instruction set against plain C++, which reaches codes through core/tile_layout.h.
#include <algorithm>
#include <cmath>

#include "kernels/tile.h"
#include "kernels/tile_plain.h"
#include "support.h"

namespace veloxquant::kernels {
namespace {

using Kind = TileLevels::Kind;

TileLevels levels_of(Kind kind, int bits, Random& random) {
  TileLevels levels{.kind = kind};
  const int size = 1 << std::min(bits, 4);
  for (int i = 0; kind == Kind::table && i < 16; ++i) {
    levels.levels[i] = i < size ? static_cast<int8_t>(random.below(255) - 127) : levels.levels[i - size];
  }
  return levels;
}

/// Every grid with every kind of level that it can have.
template <class Visit>
void for_each_grid(Visit&& visit) {
  uint32_t seed = 1;
  for (Side side : kSides) {
    for (int bits : {1, 2, 3, 4, 8}) {
      for (int dim : {16, 64, 80, 96, 112, 128, 192, 256}) {
        if (!TileGrid::exists(side, bits, dim)) continue;
        for (Kind kind : {Kind::raw, Kind::table, Kind::integer}) {
          if ((kind == Kind::integer) != (bits == 8) && kind != Kind::raw) continue;
          Random random(seed++);
          const FieldOrder order = kind == Kind::raw ? FieldOrder::affine : FieldOrder::codebook;
          SCOPED_TRACE(std::to_string(bits) + " bits, dim " + std::to_string(dim) + ", side " +
                       std::string(to_string(side)) + ", kind " + std::to_string(static_cast<int>(kind)));
          visit(TileGrid{side, order, bits, dim}, levels_of(kind, bits, random), random);
        }
      }
    }
  }
}

std::vector<uint8_t> random_codes(const TileGrid& grid, Random& random) {
  std::vector<uint8_t> codes(static_cast<size_t>(kTileRows) * static_cast<size_t>(grid.dim));
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random.below(1u << grid.bits));
  return codes;
}

TEST(tile_pack, puts_every_code_where_the_layout_says) {
  for_each_grid([](const TileGrid& grid, const TileLevels&, Random& random) {
    const std::vector<uint8_t> codes = random_codes(grid, random);
    const auto dim = static_cast<size_t>(grid.dim);
    std::vector<uint8_t> by_channel(codes.size());
    for (size_t i = 0; i < codes.size(); ++i) by_channel[i % dim * kTileRows + i / dim] = codes[i];
    std::vector<std::byte> expected(grid.bytes());
    for (size_t i = 0; i < codes.size(); ++i) {
      const int row = static_cast<int>(i / dim), c = static_cast<int>(i % dim);
      const auto put = [&](size_t bit, unsigned value) {
        expected[bit / 8] |= static_cast<std::byte>(value << bit % 8);
      };
      put(tile_code_index(grid, row, c), codes[i] & ((1u << grid.word_bits()) - 1));
      if (grid.bits == 3) put(tile_code_index(grid, row, c, 1), codes[i] >> 2);
    }
    for_every_target([&](int64_t) {
      Guarded<std::byte> packed(grid.bytes());
      tile_kernels().pack(grid, codes.data(), grid.dim, false, packed.data());
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), packed.data()) && packed.guards_hold());
      if (grid.side == Side::value) return;
      Guarded<std::byte> turned(grid.bytes());
      tile_kernels().pack(grid, by_channel.data(), kTileRows, true, turned.data());
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), turned.data()) && turned.guards_hold());
    });
    std::vector<uint8_t> back(codes.size());
    plain::unpack(grid, expected.data(), back.data(), grid.dim);
    EXPECT_EQ(back, codes);
  });
}

TEST(tile_operand, equals_the_plain_one_up_to_the_sign_of_its_bytes) {
  for_each_grid([](const TileGrid& grid, const TileLevels& levels, Random& random) {
    const std::vector<std::byte> codes = random.bytes(grid.bytes());
    for (int x = 0; x < grid.free_size();) {
      const TileStrip strip = strip_at(grid, x);
      const size_t size = static_cast<size_t>(strip.width) * static_cast<size_t>(grid.contraction_size());
      std::vector<uint8_t> expected(size);
      plain::operand(grid, strip, levels, codes.data() + strip.offset, nullptr, expected.data());
      for_every_target([&](int64_t) {
        const TileKernels& kernels = tile_kernels();
        Guarded<uint8_t> out(size);
        kernels.operand(grid, strip, levels, codes.data() + strip.offset, x % 128 == 0 ? codes.data() : nullptr,
                        out.data());
        const bool shifted = kernels.table_shift != 0 && (levels.kind != Kind::raw || grid.bits == 8);
        for (size_t i = 0; i < size; ++i) ASSERT_EQ(out.data()[i] ^ (shifted ? 0x80 : 0), expected[i]) << i;
        EXPECT_TRUE(out.guards_hold());
      });
      x += strip.width;
    }
  });
}

TEST(tile_dot, equals_the_plain_one) {
  Random random(3);
  for (int width : {16, 32, 64}) {
    for (int steps : {4, 16, 20, 64}) {
      for (int queries : {1, 2, 3, 4, 5, 8}) {
        for (int planes : {1, 2}) {
          for (bool classes : {false, true}) {
            const size_t k = static_cast<size_t>(4 * steps), classes_there = classes ? 2 : 1;
            std::vector<uint8_t> signed_bytes(static_cast<size_t>(width) * k);
            for (uint8_t& b : signed_bytes) b = static_cast<uint8_t>(random.below(256));
            signed_bytes[0] = 0x80;  // the least level
            std::vector<int8_t> q(static_cast<size_t>(queries) * classes_there * static_cast<size_t>(planes) * k);
            for (int8_t& v : q) v = static_cast<int8_t>(static_cast<int>(random.below(255)) - 127);
            std::vector<DotTerm> terms(static_cast<size_t>(queries) * classes_there);
            std::vector<int32_t> sums(terms.size());
            for (size_t i = 0; i < terms.size(); ++i) {
              terms[i] = {random.normal(), random.normal(), static_cast<int32_t>(random.below(1000))};
              for (size_t e = 0; e < k; ++e) {
                const int8_t* plane = q.data() + i * static_cast<size_t>(planes) * k;
                sums[i] += planes == 2 ? 128 * plane[e] + plane[k + e] : plane[e];
              }
            }
            std::vector<float> factor;
            for (int x = 0; x < width; ++x) factor.push_back(random.normal());
            TileDot dot;
            dot.width = width;
            dot.steps = steps;
            dot.plane_stride = static_cast<int64_t>(k);
            dot.class_stride = classes ? static_cast<int64_t>(k) * planes : 0;
            dot.query_stride = static_cast<int64_t>(k * static_cast<size_t>(planes) * classes_there);
            dot.q = q.data();
            dot.planes = planes;
            dot.queries = queries;
            dot.term_stride = static_cast<int64_t>(classes_there);
            dot.ld = width + 3;
            dot.add = queries % 2 == 0;
            dot.factor = steps == 16 ? factor.data() : nullptr;
            const auto run = [&](auto function, const std::vector<uint8_t>& operand, const std::vector<DotTerm>& all) {
              Guarded<float> out(static_cast<size_t>(queries - 1) * static_cast<size_t>(dot.ld) +
                                 static_cast<size_t>(width));
              for (int i = 0; i < queries; ++i) {
                for (int x = 0; x < width; ++x) out.data()[i * dot.ld + x] = static_cast<float>(x - i);
              }
              dot.operand = operand.data();
              dot.terms = all.data();
              dot.out = out.data();
              function(dot);
              return out;
            };
            Guarded<float> expected = run(plain::dot, signed_bytes, terms);
            for_every_target([&](int64_t) {
              const TileKernels& kernels = tile_kernels();
              std::vector<uint8_t> bytes = signed_bytes;
              std::vector<DotTerm> shifted = terms;
              for (uint8_t& b : bytes) b ^= kernels.table_shift == 0 ? 0 : 0x80;
              for (size_t i = 0; i < terms.size(); ++i) shifted[i].start -= kernels.table_shift * sums[i];
              Guarded<float> out = run(kernels.dot, bytes, shifted);
              EXPECT_TRUE(out.guards_hold());
              for (int i = 0; i < queries; ++i) {
                for (int x = 0; x < width; ++x) {
                  const float e = expected.data()[i * dot.ld + x];
                  ASSERT_NEAR(out.data()[i * dot.ld + x], e, 1e-6f * std::abs(e) + 1e-2f)
                      << kernels.name << " width " << width << " steps " << steps << " query " << i << " x " << x;
                }
              }
            });
          }
        }
      }
    }
  }
}

TEST(tile_quantise, equals_the_plain_one_and_keeps_the_largest) {
  Random random(5);
  for (const TileGrid& grid : {TileGrid{Side::key, FieldOrder::codebook, 2, 80},
                               {Side::key, FieldOrder::affine, 4, 256},
                               {Side::value, FieldOrder::codebook, 2, 64},
                               {Side::key, FieldOrder::codebook, 8, 16}}) {
    const OperandOrder order = operand_order(grid);
    const int k = grid.contraction_size();
    for (int planes : {1, 2}) {
      for (float size : {1.0f, 1e-20f, 1e30f, 1e-38f, 0.0f}) {
        std::vector<float> x(static_cast<size_t>(k));
        for (float& v : x) v = size * random.normal();
        std::vector<int8_t> expected(static_cast<size_t>(k * planes));
        int32_t expected_sum;
        const float unit = plain::quantise(x.data(), k, planes, order, expected.data(), &expected_sum);
        for_every_target([&](int64_t) {
          Guarded<int8_t> out(expected.size());
          int32_t sum;
          EXPECT_EQ(tile_kernels().quantise(x.data(), k, planes, order, out.data(), &sum), unit);
          EXPECT_EQ(sum, expected_sum);
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.data()) && out.guards_hold());
        });
        for (int p = 0; p < k; ++p) {
          const auto at = static_cast<size_t>(p);
          const int v = planes == 2 ? 128 * expected[at] + expected[at + static_cast<size_t>(k)] : expected[at];
          const float element = x[static_cast<size_t>(p / 64 * 64 + order[at % 64])];
          EXPECT_LE(std::abs(static_cast<float>(v) * unit - element), 0.5001f * unit + 1e-30f);
        }
      }
    }
  }
}

TEST(tile_parameters, equal_the_plain_ones) {
  Random random(6);
  std::vector<uint16_t> scales, zeros;
  std::vector<float> x;
  for (int i = 0; i < 192; ++i) {
    scales.push_back(static_cast<uint16_t>(random.below(0x7c00)));
    zeros.push_back(static_cast<uint16_t>(random.below(0x7c00) | random.below(2) << 15));
    x.push_back(random.normal());
  }
  OperandOrder order;
  for (size_t p = 0; p < 64; ++p) order[p] = static_cast<uint8_t>(p * 37 % 64);
  for_every_target([&](int64_t) {
    const TileKernels& kernels = tile_kernels();
    std::vector<float> scale(192), zero(192), expected_scale(192), expected_zero(192), out(192), expected(192);
    plain::affine_parameters(scales.data(), zeros.data(), 192, 8, expected_scale.data(), expected_zero.data());
    kernels.affine_parameters(scales.data(), zeros.data(), 192, 8, scale.data(), zero.data());
    EXPECT_EQ(scale, expected_scale);
    EXPECT_EQ(zero, expected_zero) << "the product is exact";
    const float bias = plain::apply(x.data(), scale.data(), zero.data(), 192, expected.data());
    EXPECT_NEAR(kernels.apply(x.data(), scale.data(), zero.data(), 192, out.data()), bias, 1e-5f * 65504 * 192);
    EXPECT_EQ(out, expected);
    EXPECT_EQ(kernels.apply(x.data(), scale.data(), nullptr, 192, out.data()), 0);
    EXPECT_NEAR(kernels.peak(x.data(), 192), plain::peak(x.data(), 192), 1e-4);
    EXPECT_EQ(kernels.peak(std::vector<float>(64).data(), 64), 0);
    kernels.permute(x.data(), order, out.data());
    plain::permute(x.data(), order, expected.data());
    EXPECT_EQ(out, expected);
  });
}

TEST(tile_fold, equals_applying_and_quantising) {
  Random random(8);
  for (const TileGrid& grid : {TileGrid{Side::key, FieldOrder::affine, 4, 80},
                               {Side::value, FieldOrder::affine, 2, 64},
                               {Side::key, FieldOrder::affine, 2, 128},
                               {Side::key, FieldOrder::affine, 4, 256}}) {
    const OperandOrder order = operand_order(grid);
    const int k = grid.contraction_size(), n = 3, ldx = k + 5;
    std::vector<float> x = random.normals(static_cast<size_t>(n * ldx)), scale = random.normals(static_cast<size_t>(k));
    std::fill_n(x.begin() + ldx, k, 0.0f);  // a row of nothing
    const std::vector<float> zero = random.normals(static_cast<size_t>(k));
    for (int planes : {1, 2}) {
      for (const float* zeros : {static_cast<const float*>(nullptr), zero.data()}) {
        const int64_t ldo = planes * k + 7;
        const auto run = [&](auto fold, Guarded<int8_t>& out) {
          std::vector<DotTerm> terms(static_cast<size_t>(2 * n));
          fold({x.data(), ldx, n, out.data(), ldo, terms.data(), 2}, scale.data(), zeros, k, planes, order, 8);
          return terms;
        };
        const size_t size = static_cast<size_t>((n - 1) * ldo + planes * k);
        Guarded<int8_t> expected(size);
        const std::vector<DotTerm> expected_terms = run(plain::fold, expected);
        for_every_target([&](int64_t) {
          Guarded<int8_t> out(size);
          const std::vector<DotTerm> terms = run(tile_kernels().fold, out);
          EXPECT_TRUE(same_bits(out.all(), expected.all()));
          for (size_t i = 0; i < terms.size(); ++i) {
            EXPECT_EQ(terms[i].unit, expected_terms[i].unit);
            EXPECT_EQ(terms[i].start, expected_terms[i].start);
            EXPECT_NEAR(terms[i].bias, expected_terms[i].bias, 1e-4);
          }
        });
      }
    }
  }
}

TEST(tile_expand, gives_what_the_codes_stand_for) {
  for_each_grid([](const TileGrid& grid, const TileLevels& levels, Random& random) {
    if (levels.kind != Kind::raw) return;
    const OperandOrder order = operand_order(grid);
    const int k = grid.contraction_size(), classes = 2;
    const size_t numbers = static_cast<size_t>(classes * (k + 63) / 64 * 64);
    const std::vector<float> scale = random.normals(numbers), middle_zero = random.normals(numbers);
    const std::vector<uint8_t> codes = random_codes(grid, random);
    std::vector<std::byte> tile(grid.bytes());
    plain::pack(grid, codes.data(), grid.dim, false, tile.data());
    const TileStrip strip = strip_at(grid, 0);
    for_every_target([&](int64_t) {
      const TileKernels& kernels = tile_kernels();
      std::vector<uint8_t> operand(static_cast<size_t>(strip.width * k));
      kernels.operand(grid, strip, levels, tile.data(), nullptr, operand.data());
      // The zeros of operand byte 0 from those of the middle code.
      const float shift = static_cast<float>(operand_shift(kernels, levels, grid.bits));
      std::vector<float> zero(numbers);
      for (size_t i = 0; i < numbers; ++i) zero[i] = middle_zero[i] - shift * scale[i];
      const int64_t ld = strip.width + 3, stride = k;
      Guarded<float> out(static_cast<size_t>((k - 1) * ld + strip.width));
      kernels.expand(operand.data(), strip.width, k / 4, order, order, scale.data(), zero.data(), stride, out.data(),
                     ld);
      const float middle = static_cast<float>(1 << (grid.bits - 1));
      for (int e = 0; e < k; ++e) {
        for (int x = 0; x < strip.width; ++x) {
          const int row = grid.side == Side::key ? x : e, c = grid.side == Side::key ? e : x;
          const float code = static_cast<float>(codes[static_cast<size_t>(row * grid.dim + c)]);
          const auto at = static_cast<size_t>(x / 32 * stride + e);
          const float expected = middle_zero[at] + scale[at] * (code - middle);
          ASSERT_NEAR(out.data()[e * ld + x], expected, 1e-4 * (1 + 256 * std::abs(scale[at]))) << e << " " << x;
        }
      }
      EXPECT_TRUE(out.guards_hold());
    });
  });
}

}  // namespace
}  // namespace veloxquant::kernels
