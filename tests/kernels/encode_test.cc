// Encoding equals the reference bit for bit on every instruction set, whatever the values: what is stored must not
// depend on the computer.
#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "kernels/reference.h"
#include "support.h"

namespace veloxquant::kernels {
namespace {

/// Rows of `dim` values `ld` apart, what lies between included.
struct Input {
  int rows, dim;
  int64_t ld;
  std::vector<float> x;
  const char* what;
};

Input input(int rows, int dim, const char* what, const std::function<float(float, int)>& value) {
  Random random(static_cast<uint32_t>(rows * 1000 + dim));
  Input in{rows, dim, dim + 3, {}, what};
  in.x.resize(static_cast<size_t>(rows) * static_cast<size_t>(in.ld));
  for (size_t i = 0; i < in.x.size(); ++i) in.x[i] = value(random.normal(), static_cast<int>(random.bits() % 64));
  return in;
}

/// Ordinary values and those that need care: zeros of both signs, ties, ranges beyond fp16 and fp32, subnormals.
std::vector<Input> inputs(int rows, int dim) {
  return {input(rows, dim, "normal", [](float v, int) { return v; }),
          input(rows, dim, "zeros", [](float v, int n) { return n < 8    ? std::fabs(v)
                                                                : n < 32 ? 0.0f
                                                                         : -0.0f; }),
          input(rows, dim, "ties", [](float, int n) { return static_cast<float>(n - 32) / 8; }),
          input(rows, dim, "constant", [](float, int) { return -3.5f; }),
          input(rows, dim, "beyond fp16", [](float v, int n) { return v * (n < 4 ? 1e30f : 1e5f); }),
          input(rows, dim, "beyond fp32", [](float v, int n) { return n < 4 ? (n < 2 ? 3e38f : -3e38f) : v; }),
          input(rows, dim, "tiny", [](float v, int n) { return v * (n < 32 ? 1e-7f : 1e-42f); })};
}

/// Calls function(rows, dim) for shapes with whole and ragged vectors.
template <class Function>
void for_every_shape(Function function) {
  for (const int dim : {1, 2, 7, 12, 15, 16, 17, 31, 32, 33, 64, 80, 96, 100, 128, 192}) {
    for (const int rows : {1, 3, 32}) function(rows, dim);
  }
}

TEST(encode_affine, rows_equal_the_reference) {
  for_every_shape([](int rows, int dim) {
    for (const Input& in : inputs(rows, dim)) {
      for (const int group : {1, 7, 16, 20, 32, 64, 128}) {
        if (group > dim && group != 32) continue;
        for (const int bits : {1, 2, 3, 4, 8}) {
          const size_t codes = static_cast<size_t>(rows * dim),
                       pairs = static_cast<size_t>(rows * ((dim + group - 1) / group));
          Guarded<uint8_t> expected(codes), out(codes);
          Guarded<uint16_t> expected_params(2 * pairs), params(2 * pairs);
          const auto arguments = [&](Guarded<uint8_t>& c, Guarded<uint16_t>& p, auto encode) {
            encode(in.x.data(), in.ld, rows, dim, group, bits, c.data(), p.data());
          };
          arguments(expected, expected_params, reference::encode_affine_rows);
          for_every_target([&](int64_t) {
            arguments(out, params, encode_affine_rows);
            EXPECT_TRUE(same_bits(out.all(), expected.all())) << in.what << dim << " " << group << " " << bits;
            EXPECT_TRUE(same_bits(params.all(), expected_params.all())) << in.what << dim << " " << group;
          });
        }
      }
    }
  });
}

TEST(encode_affine, channels_equal_the_reference) {
  for (const int dim : {1, 3, 8, 15, 16, 17, 33, 64, 80}) {
    for (const int rows : {1, 2, 15, 16, 20, 32, 33, 64, 100}) {
      for (const Input& in : inputs(rows, dim)) {
        for (const int bits : {1, 2, 3, 4, 8}) {
          const int64_t ld = rows + bits % 3;
          const size_t codes = static_cast<size_t>(ld * dim);
          Guarded<uint8_t> expected(codes), out(codes);
          Guarded<uint16_t> expected_params(2 * static_cast<size_t>(dim)), params = expected_params;
          reference::encode_affine_channels(in.x.data(), in.ld, rows, dim, bits, expected.data(), ld,
                                            expected_params.data());
          for_every_target([&](int64_t) {
            encode_affine_channels(in.x.data(), in.ld, rows, dim, bits, out.data(), ld, params.data());
            EXPECT_TRUE(same_bits(out.all(), expected.all())) << in.what << rows << " " << dim << " " << bits;
            EXPECT_TRUE(same_bits(params.all(), expected_params.all())) << in.what << rows << " " << dim;
          });
        }
      }
    }
  }
}

TEST(encode_int8, equals_the_reference) {
  for_every_shape([](int rows, int dim) {
    for (const Input& in : inputs(rows, dim)) {
      const size_t codes = static_cast<size_t>(rows * dim);
      Guarded<uint8_t> expected(codes), out(codes);
      Guarded<uint16_t> expected_scales(static_cast<size_t>(rows)), scales = expected_scales;
      reference::encode_int8(in.x.data(), in.ld, rows, dim, expected.data(), expected_scales.data());
      for_every_target([&](int64_t) {
        encode_int8(in.x.data(), in.ld, rows, dim, out.data(), scales.data());
        EXPECT_TRUE(same_bits(out.all(), expected.all())) << in.what << dim;
        EXPECT_TRUE(same_bits(scales.all(), expected_scales.all())) << in.what << dim;
      });
    }
  });
}

TEST(inner_products, equal_the_reference) {
  for_every_shape([](int rows, int dim) {
    const Input a = inputs(rows, dim)[0];
    const std::vector<float> b = Random(7).normals(a.x.size());
    Guarded<float> expected(static_cast<size_t>(rows)), out(static_cast<size_t>(rows));
    reference::inner_products(a.x.data(), a.ld, b.data(), dim + 1, rows, dim, expected.data());
    for_every_target([&](int64_t) {
      inner_products(a.x.data(), a.ld, b.data(), dim + 1, rows, dim, out.data());
      EXPECT_TRUE(same_bits(out.all(), expected.all())) << dim;
    });
  });
}

TEST(dense_map, equals_the_reference) {
  for (int rows : {1, 3, 4, 9}) {
    for (int in : {1, 33, 128}) {
      for (int out : kDims) {
        Random random(static_cast<uint32_t>(rows + 10 * in + 1000 * out));
        const std::vector<float> x = random.normals(static_cast<size_t>(rows * (in + 3)));
        const std::vector<float> columns = random.normals(static_cast<size_t>(in * out));
        Guarded<float> expected(static_cast<size_t>(rows * (out + 5))), y(static_cast<size_t>(rows * (out + 5)));
        reference::dense_map(rows, in, out, x.data(), in + 3, columns.data(), expected.data(), out + 5);
        for_every_target([&](int64_t) {
          dense_map(rows, in, out, x.data(), in + 3, columns.data(), y.data(), out + 5);
          EXPECT_TRUE(same_bits(y.all(), expected.all())) << rows << ' ' << in << ' ' << out;
        });
      }
    }
  }
}

/// 2^bits - 1 ascending bounds, some values of x among them.
std::vector<float> bounds_among(const std::vector<float>& x, int bits) {
  std::vector<float> bounds = Random(8).normals((size_t{1} << bits) - 1);
  for (size_t i = 0; i < bounds.size(); i += 2) bounds[i] = x[i % x.size()];
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

TEST(encode_codebook, equals_the_reference) {
  for_every_shape([](int rows, int dim) {
    Input in = inputs(rows, dim)[0];
    in.x[0] = std::numeric_limits<float>::quiet_NaN();  // what a row beyond fp32 leaves after its rotation
    std::vector<float> factors = Random(9).normals(static_cast<size_t>(rows));
    factors[0] = 1;  // values stay on their bounds
    for (int bits = 1; bits <= 8; ++bits) {
      const std::vector<float> bounds = bounds_among({in.x.begin() + 1, in.x.end()}, bits);
      const size_t codes = static_cast<size_t>(rows * dim);
      Guarded<uint8_t> expected(codes);
      std::vector<float> scaled = in.x;
      reference::encode_codebook(scaled.data(), in.ld, rows, dim, factors.data(), bounds.data(), bits, expected.data());
      for_every_target([&](int64_t) {
        Guarded<uint8_t> out(codes);
        std::vector<float> u = in.x;
        encode_codebook(u.data(), in.ld, rows, dim, factors.data(), bounds.data(), bits, out.data());
        EXPECT_TRUE(same_bits(out.all(), expected.all())) << dim << " " << bits;
        EXPECT_TRUE(same_bits(u, scaled)) << dim << " " << bits;
      });
    }
  });
}

TEST(encode_residual, equals_the_reference) {
  for_every_shape([](int rows, int dim) {
    const Input in = inputs(rows, dim)[0];
    Random random(10);
    for (int bits = 1; bits <= 4; ++bits) {
      const std::vector<float> levels = random.normals(size_t{1} << bits), bounds = bounds_among(in.x, bits);
      Guarded<uint8_t> first(static_cast<size_t>(rows * dim));
      for (int i = 0; i < rows * dim; ++i) first.data()[i] = static_cast<uint8_t>(random.below(1 << bits));
      Guarded<uint8_t> expected = first;
      reference::encode_residual(in.x.data(), in.ld, rows, dim, levels.data(), bounds.data(), bits, expected.data());
      for_every_target([&](int64_t) {
        Guarded<uint8_t> out = first;
        encode_residual(in.x.data(), in.ld, rows, dim, levels.data(), bounds.data(), bits, out.data());
        EXPECT_TRUE(same_bits(out.all(), expected.all())) << dim << " " << bits;
      });
    }
  });
}

TEST(pack_plane, equals_the_reference) {
  Random random(11);
  std::vector<uint8_t> codes(3 * 300);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random.bits());
  for (int n = 1; n <= 270; n += n < 70 ? 1 : 25) {
    for (const int width : {1, 2, 4, 8}) {
      for (int shift = 0; shift + width <= 8; ++shift) {
        const int64_t bytes = (n * width + 7) / 8, stride = bytes + 2;
        Guarded<uint8_t> expected(static_cast<size_t>(3 * stride));
        const Guarded<uint8_t> start = expected;
        const auto to_bytes = [](Guarded<uint8_t>& g) { return reinterpret_cast<std::byte*>(g.data()); };
        reference::pack_plane(codes.data(), 300, 3, n, shift, width, to_bytes(expected), stride);
        for_every_target([&](int64_t) {
          Guarded<uint8_t> out = start;
          pack_plane(codes.data(), 300, 3, n, shift, width, to_bytes(out), stride);
          EXPECT_TRUE(same_bits(out.all(), expected.all())) << n << " " << width << " " << shift;
        });
      }
    }
  }
}

TEST(pack_bit_string, equals_the_reference) {
  Random random(16);
  std::vector<uint8_t> codes(100);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random.bits());
  for (int n = 1; n <= 70; ++n) {
    const std::vector<uint8_t> run(codes.begin(), codes.begin() + n);  // exact size: a byte too many shows under ASan
    for (int bits = 1; bits <= 8; ++bits) {
      for (int shift = 0; shift + bits <= 8; ++shift) {
        Guarded<uint8_t> expected(static_cast<size_t>((n * bits + 7) / 8));
        const Guarded<uint8_t> start = expected;
        reference::pack_bit_string(run.data(), n, shift, bits, reinterpret_cast<std::byte*>(expected.data()));
        for_every_target([&](int64_t) {
          Guarded<uint8_t> out = start;
          pack_bit_string(run.data(), n, shift, bits, reinterpret_cast<std::byte*>(out.data()));
          EXPECT_TRUE(same_bits(out.all(), expected.all())) << n << " " << bits << " " << shift;
        });
      }
    }
  }
}

/// A map of order dim = core * 2^k; its core need not be a Hadamard matrix.
struct Map {
  Map(int dim, int core, int rounds) : factors(Random(12).normals(static_cast<size_t>(dim * rounds))) {
    Random random(13);
    for (int i = 0; i < core * core; ++i) matrix.push_back(random.below(2) ? 1.0f : -1.0f);
    for (int i = 0; i < core * core; ++i) turned.push_back(matrix[static_cast<size_t>(i % core * core + i / core)]);
    plan = {dim, rounds, core, factors.data(), matrix.data(), turned.data()};
  }
  std::vector<float> factors, matrix, turned;
  HadamardRounds plan;
};

void expect_rotated(const Map& map, int rows) {
  const Input in = inputs(rows, map.plan.dim)[0];
  for (const auto& [fast, plain] :
       {std::pair(&rotate, &reference::rotate), std::pair(&rotate_back, &reference::rotate_back)}) {
    Guarded<float> expected(in.x.size());
    const Guarded<float> start = expected;
    plain(map.plan, rows, in.x.data(), in.ld, expected.data(), in.ld);
    for_every_target([&](int64_t) {
      Guarded<float> out = start;
      fast(map.plan, rows, in.x.data(), in.ld, out.data(), in.ld);
      EXPECT_TRUE(same_bits(out.all(), expected.all())) << map.plan.dim << " " << map.plan.rounds << " " << rows;
      std::vector<float> in_place = in.x;
      fast(map.plan, rows, in_place.data(), in.ld, in_place.data(), in.ld);
      for (int r = 0; r < rows; ++r) {
        const float* row = in_place.data() + r * in.ld;
        EXPECT_TRUE(std::equal(row, row + map.plan.dim, expected.data() + r * in.ld));
        EXPECT_TRUE(std::equal(row + map.plan.dim, row + in.ld, in.x.data() + r * in.ld + map.plan.dim));
      }
    });
  }
}

TEST(rotate, equals_the_reference) {
  for (const int core : {1, 12, 20, 28}) {
    for (int dim = core; dim <= 1024; dim *= 2) {
      for (const int rounds : {1, 2, 3}) {
        const Map map(dim, core, rounds);
        for (const int rows : {3, 21, 29}) expect_rotated(map, rows);
      }
    }
  }
}

TEST(round_to, equals_there_and_back) {
  std::vector<float> x = Random(14).normals(70);
  x[1] = 65519.99f;
  x[2] = 65520;
  x[3] = 0x1p-25f;
  x[5] = -0.0f;
  for (const DType type : {DType::f16, DType::bf16, DType::f32}) {
    for (int64_t n = 0; n <= 70; ++n) {
      Guarded<float> expected(static_cast<size_t>(n));
      const Guarded<float> start = expected;
      reference::round_to(x.data(), n, type, expected.data());
      for_every_target([&](int64_t) {
        Guarded<float> out = start;
        round_to(x.data(), n, type, out.data());
        EXPECT_TRUE(same_bits(out.all(), expected.all())) << n;
        std::vector<float> in_place = x;
        round_to(in_place.data(), n, type, in_place.data());
        EXPECT_TRUE(std::equal(x.begin() + n, x.end(), in_place.begin() + n));
        EXPECT_TRUE(std::equal(in_place.begin(), in_place.begin() + n, expected.data()));
      });
    }
  }
}

TEST(within, finds_one_bad_value_anywhere) {
  const float limit = 65519.996f, above = std::nextafter(limit, 1e30f);
  for (size_t n = 0; n <= 40; ++n) {
    std::vector<float> good = Random(15).normals(n);
    if (n > 1) good[0] = limit, good[1] = -limit;
    for_every_target([&](int64_t) {
      EXPECT_TRUE(within(good.data(), static_cast<int64_t>(n), limit));
      for (size_t i = 0; i < n; ++i) {
        for (const float bad : {above, -above, std::numeric_limits<float>::infinity(), std::nanf("")}) {
          std::vector<float> x = good;
          x[i] = bad;
          EXPECT_FALSE(within(x.data(), static_cast<int64_t>(n), limit)) << i << " of " << n;
          EXPECT_FALSE(reference::within(x.data(), static_cast<int64_t>(n), limit));
        }
      }
    });
  }
}

}  // namespace
}  // namespace veloxquant::kernels
