// The decoders: equal bits to the reference, which reaches codes through core/layout.h.
#include <algorithm>
#include <limits>

#include "core/half.h"
#include "core/layout.h"
#include "kernels/reference.h"
#include "support.h"

namespace veloxquant::kernels {
namespace {

struct AffineRuns {
  AffineRuns(int runs, int run_codes, int group, int bits, uint32_t seed)
      : runs(runs), run_codes(run_codes), group(group), bits(bits), ld(run_codes + 3) {
    Random random(seed);
    const size_t packed = packed_bytes(Packing::planes, run_codes, bits);
    run_bytes = packed + seed % 3;
    codes = random.bytes(static_cast<size_t>(runs - 1) * run_bytes + packed);
    const int groups = (run_codes + group - 1) / group;
    for (int pair = 0; pair < runs * groups; ++pair) {
      const float zero = random.normal(), scale = std::abs(random.normal());
      if (random.below(2) == 0) {
        params.push_back(f16_from_f32(zero));
        params.push_back(f16_from_f32(scale));
      } else {  // beyond fp16: the sign bit of the scale says bf16
        params.push_back(bf16_from_f32(zero * 1e9f));
        params.push_back(static_cast<uint16_t>(bf16_from_f32(scale * 1e9f) | 0x8000u));
      }
    }
  }
  template <class Kernel>
  Guarded<float> decode(Kernel kernel) const {
    Guarded<float> out(static_cast<size_t>((runs - 1) * ld + run_codes));
    kernel(codes.data(), run_bytes, params.data(), runs, run_codes, group, bits, out.data(), ld);
    return out;
  }

  int runs, run_codes, group, bits;
  int64_t ld;
  size_t run_bytes;
  std::vector<std::byte> codes;
  std::vector<uint16_t> params;
};

TEST(decode_affine, equals_the_reference_for_any_width_run_and_group) {
  uint32_t seed = 0;
  for (int bits = 1; bits <= 8; ++bits) {
    for (const int run_codes : kDims) {
      for (const int group : {32, 16, 64, 7, run_codes}) {
        const AffineRuns p(1 + static_cast<int>(seed % 5), run_codes, group, bits, seed);
        ++seed;
        const Guarded<float> expected = p.decode(reference::decode_affine);
        for_every_target([&](int64_t) {
          EXPECT_TRUE(same_bits(p.decode(decode_affine).all(), expected.all()))
              << bits << " bits, " << run_codes << " codes, group " << group;
        });
      }
    }
  }
}

TEST(decode_affine, many_runs_use_their_own_parameters) {
  const AffineRuns p(131, 64, 32, 2, 7);
  const Guarded<float> expected = p.decode(reference::decode_affine);
  for_every_target([&](int64_t) { EXPECT_TRUE(same_bits(p.decode(decode_affine).all(), expected.all())); });
}

TEST(decode_affine, ramp_of_codes_gives_a_ramp_of_values) {
  std::vector<std::byte> codes(64);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(3 * i);
  const std::vector<uint16_t> params = {f16_from_f32(-1.5f), f16_from_f32(0.25f), f16_from_f32(2.0f),
                                        f16_from_f32(0.5f)};
  for_every_target([&](int64_t) {
    std::vector<float> out(64);
    decode_affine(codes.data(), 64, params.data(), 1, 64, 32, 8, out.data(), 64);
    for (int i = 0; i < 64; ++i) {
      const float value = static_cast<float>(3 * i);
      EXPECT_EQ(out[static_cast<size_t>(i)], i < 32 ? -1.5f + 0.25f * value : 2.0f + 0.5f * value);
    }
  });
}

TEST(decode_affine, every_type_of_parameter_is_exact) {
  struct Case {
    uint16_t zero, scale;
    float expected;  // of code 3
  };
  const Case cases[] = {
      {f16_from_f32(-3.25f), 0, -3.25f},  // constant group
      {0x0001, 0x0001, 4 * 0x1p-24f},     // smallest fp16
      {0xfbff, 0x7bff, 2 * 65504.0f},     // largest fp16
      {0xff7f, 0x8000, -0x1.fep127f},     // bf16, largest finite, constant
      {0xff7f, static_cast<uint16_t>(0x7e7f | 0x8000), std::fma(3.0f, 0x1.fep125f, -0x1.fep127f)},
      {0x0001, 0x8001, 4 * 0x1p-133f},                         // bf16, subnormal
      {0x3f80, static_cast<uint16_t>(0x4000 | 0x8000), 7.0f},  // bf16: 1 + 2 * 3
  };
  const std::vector<std::byte> codes(8, std::byte{0xff});  // all codes 3
  for (const Case& c : cases) {
    const std::vector<uint16_t> params = {c.zero, c.scale, c.zero, c.scale};
    for_every_target([&](int64_t) {
      std::vector<float> out(32);
      decode_affine(codes.data(), 8, params.data(), 1, 32, 16, 2, out.data(), 32);
      EXPECT_TRUE(same_bits(out, std::vector<float>(32, c.expected))) << c.zero << ' ' << c.scale;
    });
  }
}

struct CodebookRows {
  CodebookRows(int rows, int dim, int bits, bool two_streams, int missing_levels, bool integer, uint32_t seed)
      : rows(rows), dim(dim), bits(bits), ld(dim + 5) {
    Random random(seed);
    const size_t packed = packed_bytes(Packing::bit_string, dim, bits);
    row_bytes = packed + seed % 3;
    codes = random.bytes(static_cast<size_t>(rows - 1) * row_bytes + packed);
    if (two_streams) low_codes = random.bytes(codes.size());
    for (int r = 0; r < rows; ++r) norms.push_back(f16_from_f32(random.normal()));
    book.size = (1 << (two_streams ? 2 * bits : bits)) - missing_levels;
    levels = random.normals(static_cast<size_t>(book.size));
    for (int i = 0; i < book.size; ++i) integers.push_back(static_cast<int8_t>(random.bits()));
    book.levels = integer ? nullptr : levels.data();
    book.integer = integer ? integers.data() : nullptr;
    book.unit = integer ? 0.013f : 0.0f;
  }
  template <class Kernel>
  Guarded<float> decode(Kernel kernel) const {
    Guarded<float> out(static_cast<size_t>((rows - 1) * ld + dim));
    kernel(codes.data(), low_codes.empty() ? nullptr : low_codes.data(), row_bytes, norms.data(), 0.7f, rows, dim, bits,
           book, out.data(), ld);
    return out;
  }

  int rows, dim, bits;
  int64_t ld;
  size_t row_bytes;
  std::vector<std::byte> codes, low_codes;
  std::vector<uint16_t> norms;
  std::vector<float> levels;
  std::vector<int8_t> integers;
  Codebook book;
};

TEST(decode_codebook, equals_the_reference_for_any_width_and_size) {
  uint32_t seed = 0;
  for (int bits = 1; bits <= 8; ++bits) {
    for (const int dim : kDims) {
      for (const bool two_streams : {false, true}) {
        if (two_streams && bits > 4) continue;
        const int index_bits = two_streams ? 2 * bits : bits;
        for (const bool integer : {false, true}) {
          if (integer && index_bits > 4) continue;
          for (const int missing : {0, 1}) {
            const CodebookRows p(1 + static_cast<int>(seed % 4), dim, bits, two_streams, missing, integer, seed);
            ++seed;
            const Guarded<float> expected = p.decode(reference::decode_codebook);
            for_every_target([&](int64_t) {
              EXPECT_TRUE(same_bits(p.decode(decode_codebook).all(), expected.all()))
                  << bits << " bits, dim " << dim << (two_streams ? ", two streams" : "")
                  << (integer ? ", integers" : "") << ", missing levels " << missing;
            });
          }
        }
      }
    }
  }
}

TEST(decode_codebook, many_rows_use_their_own_norm) {
  const CodebookRows p(150, 64, 2, true, 0, true, 9);
  const Guarded<float> expected = p.decode(reference::decode_codebook);
  EXPECT_FALSE(same_bits(expected.all(), Guarded<float>(expected.all().size() - 34).all()));
  for_every_target([&](int64_t) { EXPECT_TRUE(same_bits(p.decode(decode_codebook).all(), expected.all())); });
}

TEST(decode_codebook, no_rows_are_no_work) {
  const CodebookRows p(1, 64, 2, false, 0, false, 1);
  for_every_target([&](int64_t) {
    Guarded<float> out(4);
    decode_codebook(p.codes.data(), nullptr, p.row_bytes, p.norms.data(), 1.0f, 0, 64, 2, p.book, out.data(), 64);
    EXPECT_TRUE(same_bits(out.all(), Guarded<float>(4).all()));
  });
}

TEST(decode_int8, equals_the_reference_and_spans_both_signs) {
  Random random(11);
  for (const int dim : kDims) {
    for (const int rows : {1, 3, 70}) {
      const std::vector<std::byte> codes = random.bytes(static_cast<size_t>(rows * dim));
      std::vector<uint16_t> scales;
      for (int r = 0; r < rows; ++r) scales.push_back(f16_from_f32(0.01f + std::abs(random.normal())));
      const int64_t ld = dim + 2;
      const auto decode = [&](auto kernel) {
        Guarded<float> out(static_cast<size_t>((rows - 1) * ld + dim));
        kernel(codes.data(), scales.data(), rows, dim, out.data(), ld);
        return out;
      };
      const Guarded<float> expected = decode(reference::decode_int8);
      for_every_target([&](int64_t) {
        Guarded<float> out = decode(decode_int8);
        EXPECT_TRUE(same_bits(out.all(), expected.all())) << rows << ' ' << dim;
        if (dim >= 64) {
          EXPECT_LT(*std::min_element(out.data(), out.data() + dim), 0.0f);
          EXPECT_GT(*std::max_element(out.data(), out.data() + dim), 0.0f);
        }
      });
    }
  }
}

}  // namespace
}  // namespace veloxquant::kernels
