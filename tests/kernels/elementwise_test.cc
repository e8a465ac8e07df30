// Conversions (equal bits to core/half.h for every value), softmax_step, scale, biases, softcap, all_finite.
#include <algorithm>
#include <limits>
#include <numeric>

#include "core/half.h"
#include "kernels/reference.h"
#include "support.h"

namespace veloxquant::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

std::vector<uint32_t> bits_of(const std::vector<float>& x) {
  std::vector<uint32_t> bits(x.size());
  std::transform(x.begin(), x.end(), bits.begin(), [](float v) { return std::bit_cast<uint32_t>(v); });
  return bits;
}

TEST(to_f32, gives_the_bits_of_half_h_for_all_65536_values) {
  std::vector<uint16_t> all(65536);
  std::iota(all.begin(), all.end(), uint16_t{0});
  for (const DType type : {DType::f16, DType::bf16}) {
    std::vector<float> expected(all.size());
    std::transform(all.begin(), all.end(), expected.begin(), type == DType::f16 ? f32_from_f16 : f32_from_bf16);
    for_every_target([&](int64_t) {
      std::vector<float> out(all.size());
      to_f32(all.data(), static_cast<int64_t>(all.size()), type, out.data());
      EXPECT_TRUE(same_bits(bits_of(out), bits_of(expected))) << to_string(type);
    });
  }
}

/// Both neighbours of every rounding boundary of both 16-bit types, NaN and random patterns.
std::vector<float> floats_to_round() {
  std::vector<float> x;
  const auto add_around = [&](float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    for (const uint32_t near : {bits - 1, bits, bits + 1}) x.push_back(std::bit_cast<float>(near));
  };
  for (uint32_t half = 0; half < 65536; ++half) {
    const float value = f32_from_f16(static_cast<uint16_t>(half));
    const float next = f32_from_f16(static_cast<uint16_t>(half + 1));
    if (std::isfinite(value)) add_around(value);
    if (std::isfinite(value) && std::isfinite(next)) add_around(value / 2 + next / 2);
    add_around(std::bit_cast<float>(half << 16));
    add_around(std::bit_cast<float>(half << 16 | 0x8000u));
  }
  for (const float value :
       {65504.0f, 65519.99f, 65520.0f, 65536.0f, kLargest, kInfinity, 0x1p-24f, 0x1p-25f, 0x1p-149f}) {
    add_around(value);
    add_around(-value);
  }
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xffc12345u, 0x7fffffffu, 0xff800001u}) {
    x.push_back(std::bit_cast<float>(nan));
  }
  Random random(1);
  for (int i = 0; i < 200000; ++i) x.push_back(std::bit_cast<float>(random.bits()));
  return x;
}

TEST(from_f32, gives_the_bits_of_half_h_around_every_boundary) {
  const std::vector<float> x = floats_to_round();
  for (const DType type : {DType::f16, DType::bf16}) {
    std::vector<uint16_t> expected(x.size());
    std::transform(x.begin(), x.end(), expected.begin(), type == DType::f16 ? f16_from_f32 : bf16_from_f32);
    for_every_target([&](int64_t) {
      std::vector<uint16_t> out(x.size());
      from_f32(x.data(), static_cast<int64_t>(x.size()), type, out.data());
      EXPECT_TRUE(same_bits(out, expected)) << to_string(type);
    });
  }
}

TEST(conversions, write_exactly_n_elements_for_any_n) {
  const std::vector<float> x = Random(2).normals(70);
  for (const DType type : {DType::f16, DType::bf16, DType::f32}) {
    for (int64_t n = 0; n <= 70; ++n) {
      const std::vector<float> in(x.begin(), x.begin() + n);  // exact size: a byte too many shows under ASan
      for_every_target([&](int64_t) {
        const size_t words = type == DType::f32 ? 2 : 1;
        Guarded<uint16_t> expected(words * static_cast<size_t>(n) + 1);
        Guarded<uint16_t> out = expected;
        // An odd guard would misalign floats: they begin one uint16_t later.
        const size_t skip = type == DType::f32 ? 1 : 0;
        reference::from_f32(in.data(), n, type, expected.data() + skip);
        from_f32(in.data(), n, type, out.data() + skip);
        EXPECT_TRUE(same_bits(out.all(), expected.all())) << n;
        Guarded<float> back_expected(static_cast<size_t>(n)), back(static_cast<size_t>(n));
        reference::to_f32(expected.data() + skip, n, type, back_expected.data());
        to_f32(expected.data() + skip, n, type, back.data());
        EXPECT_TRUE(same_bits(back.all(), back_expected.all())) << n;
        for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(back.data()[i], x[static_cast<size_t>(i)], 0.02);
      });
    }
  }
}

/// Runs softmax_step on every target and compares all it gives with the reference.
void expect_softmax(const std::vector<float>& logits, float old_max) {
  const int n = static_cast<int>(logits.size());
  Guarded<float> expected(logits.size());
  std::copy(logits.begin(), logits.end(), expected.data());
  const Guarded<float> start = expected;
  float expected_max = old_max;
  const float expected_sum = reference::softmax_step(expected.data(), n, &expected_max);
  for_every_target([&](int64_t) {
    Guarded<float> x = start;
    float max = old_max;
    const float sum = softmax_step(x.data(), n, &max);
    EXPECT_EQ(max, expected_max);
    EXPECT_NEAR(sum, expected_sum, 1e-6 * expected_sum);
    EXPECT_TRUE(close(x.all(), expected.all(), 1e-6)) << n;
  });
}

TEST(softmax_step, agrees_with_the_reference_for_any_size) {
  Random random(3);
  for (int n = 0; n <= 70; ++n) {
    std::vector<float> logits = random.normals(static_cast<size_t>(n));
    for (float& v : logits) v *= 8;
    expect_softmax(logits, -kInfinity);
    expect_softmax(logits, 20.0f);
    expect_softmax(logits, -kLargest);
  }
  for (const int n : kDims) expect_softmax(random.normals(static_cast<size_t>(n)), -kInfinity);
}

TEST(softmax_step, hidden_logits_weigh_nothing) {
  for (const int n : {1, 5, 16, 40}) {
    const size_t size = static_cast<size_t>(n);
    expect_softmax(std::vector<float>(size, -kInfinity), -kInfinity);
    expect_softmax(std::vector<float>(size, -kInfinity), 3.0f);
    std::vector<float> one(size, -kInfinity);
    one.back() = -7.5f;
    expect_softmax(one, -kInfinity);
    for_every_target([&](int64_t) {
      std::vector<float> x = one;
      float max = -kInfinity;
      EXPECT_EQ(softmax_step(x.data(), n, &max), 1.0f);
      EXPECT_EQ(max, -7.5f);
      EXPECT_EQ(x.back(), 1.0f);
      EXPECT_TRUE(std::all_of(x.begin(), x.end() - 1, [](float v) { return v == 0.0f; }));
    });
  }
}

TEST(softmax_step, weights_are_exponentials_over_their_whole_range) {
  std::vector<float> logits = {0.0f};
  for (float x = -87.3f; x < 0; x += 0.0371f) logits.push_back(x);
  for (float x = -0.5f; x < 0; x += 0.00093f) logits.push_back(x);
  expect_softmax(logits, -kInfinity);
}

TEST(softmax_step, extreme_logits_give_no_nan) {
  expect_softmax({kLargest, -kLargest, 0.0f, -kInfinity, 0x1p-149f}, -kInfinity);
  expect_softmax({-kLargest, -kLargest / 2}, kLargest);
  expect_softmax({0.0f, -80.0f, -87.2f, -87.4f, -88.0f, -103.0f, -104.5f, -1e6f}, -kInfinity);
}

TEST(scale, equals_the_reference) {
  Random random(4);
  for (int n = 0; n <= 70; ++n) {
    Guarded<float> expected(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) expected.data()[i] = i % 7 == 0 ? 0x1.8p-140f : random.normal();
    const Guarded<float> start = expected;
    reference::scale(expected.data(), n, 0.3f);
    for_every_target([&](int64_t) {
      Guarded<float> x = start;
      scale(x.data(), n, 0.3f);
      EXPECT_TRUE(same_bits(x.all(), expected.all())) << n;
    });
  }
}

TEST(biases, equal_the_reference) {
  Random random(7);
  for (int n = 0; n <= 70; ++n) {
    const size_t size = static_cast<size_t>(n);
    const std::vector<float> y = random.normals(size);  // exact size: a byte too many shows under ASan
    Guarded<float> start(size);
    for (size_t i = 0; i < size; ++i) start.data()[i] = random.normal();
    if (n > 3) start.data()[2] = -kInfinity;
    for (const int distance : {0, n, 40000, (1 << 24) + 5}) {
      Guarded<float> expected = start;
      reference::add(expected.data(), n, y.data());
      reference::subtract_distances(expected.data(), n, 0.3f, distance);
      for_every_target([&](int64_t) {
        Guarded<float> x = start;
        add(x.data(), n, y.data());
        subtract_distances(x.data(), n, 0.3f, distance);
        EXPECT_TRUE(same_bits(x.all(), expected.all())) << n;
      });
    }
  }
}

TEST(softcap, agrees_with_the_reference) {
  Random random(5);
  for (int n = 0; n <= 70; ++n) {
    Guarded<float> expected(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) expected.data()[i] = 40 * random.normal();
    if (n > 3) {
      expected.data()[0] = -kInfinity;
      expected.data()[1] = kLargest;
      expected.data()[2] = 1e-20f;
    }
    const Guarded<float> start = expected;
    reference::softcap(expected.data(), n, 50.0f);
    for_every_target([&](int64_t) {
      Guarded<float> x = start;
      softcap(x.data(), n, 50.0f);
      EXPECT_TRUE(close(x.all(), expected.all(), 1e-6)) << n;
    });
  }
}

TEST(all_finite, finds_one_bad_value_anywhere) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t n = 0; n <= 40; ++n) {
    const std::vector<float> good = [&] {
      std::vector<float> x = Random(6).normals(n);
      if (n > 2) x[0] = kLargest, x[1] = -kLargest, x[2] = 0x1p-149f;
      return x;
    }();
    for_every_target([&](int64_t) {
      EXPECT_TRUE(all_finite(good.data(), static_cast<int64_t>(n)));
      for (size_t i = 0; i < n; ++i) {
        for (const float bad : {kInfinity, -kInfinity, nan, -nan}) {
          std::vector<float> x = good;
          x[i] = bad;
          EXPECT_FALSE(all_finite(x.data(), static_cast<int64_t>(n))) << i << " of " << n;
        }
      }
    });
  }
}

}  // namespace
}  // namespace veloxquant::kernels
