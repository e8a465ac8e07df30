// Groups that do not divide, and groups that must not cross heads.
#include "codec_rows.h"
#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

// |x - x^| <= s / 2 + 2^-11 (|z| + L s) for each group of `group` channels of a row; s from the group's own range.
void expect_row_bound(const std::vector<float>& x, const std::vector<float>& y, int dim, int group, int bits) {
  const float levels = static_cast<float>((1 << bits) - 1);
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(dim)) {
    for (int first = 0; first < dim; first += group) {
      const auto begin = x.begin() + static_cast<int64_t>(row) + first, end = begin + std::min(group, dim - first);
      const auto [low, high] = std::minmax_element(begin, end);
      const float bound = (*high - *low) / levels / 2 * 1.001f + 0x1p-11f * (std::fabs(*low) + (*high - *low));
      for (auto it = begin; it != end; ++it) {
        EXPECT_LE(std::fabs(*it - y[static_cast<size_t>(it - x.begin())]), bound) << "channel " << first;
      }
    }
  }
}

// Blaizzy/mlx-vlm#2061
TEST(Group, BL_070_a_group_that_does_not_divide_the_head_leaves_a_shorter_one) {
  for (auto [dim, group] : {std::pair{96, 64}, {80, 32}, {64, 128}}) {
    for (int bits : {2, 3, 4, 8}) {
      SCOPED_TRACE(std::to_string(dim) + " by " + std::to_string(group) + " at " + std::to_string(bits));
      const auto codec = affine_row(dim, bits, group);
      EXPECT_EQ(codec->format().unit_bytes(), static_cast<size_t>(dim * bits / 8 + 4 * ((dim + group - 1) / group)));
      const std::vector<float> x = gaussian(static_cast<size_t>(100 * dim), 42), y = round_trip(*codec, x);
      expect_row_bound(x, y, dim, group, bits);
      EXPECT_GT(relative_l2(y, x), 0.0005) << "nothing was coded";
    }
    const Sequences data(one_head(dim), 1, 400);
    for (const char* rest : {",residual=0)", ",residual=0,bits=4,flush_rule=aligned_window)"}) {
      KVCache cache = make("kivi(group=" + std::to_string(group) + rest, data.shape);
      EXPECT_TRUE(all_finite(data.feed(cache, chunks_of(400, 33))));
      EXPECT_GT(cache.peek().key.coded_rows, 0);
      EXPECT_EQ(cache.peek().key.coded_rows % group, 0);
    }
  }
  for (int group : {0, -1}) {
    EXPECT_THROW(affine_row(96, 2, group), QuantizerConfigError);
    EXPECT_THROW(affine_block(96, 2, group), QuantizerConfigError);
    EXPECT_THROW(parse_method("kivi(group=" + std::to_string(group) + ")"), QuantizerConfigError);
  }
}

// VeloxQuant-MLX#78
TEST(Group, BL_071_the_decoder_uses_the_group_of_the_encoder) {
  const int dim = 8, tokens = 40;
  const Sequences data(one_head(dim), 1, tokens);
  std::vector<std::vector<std::byte>> states;
  for (int group : {8, 16, 64}) {
    const std::string text =
        "kivi(kivi_group_size=" + std::to_string(group) + ",residual=0,bits=4,flush_rule=aligned_window)";
    SCOPED_TRACE(text);
    KVCache cache = make(text, data.shape);
    data.feed(cache, {tokens});
    const auto coded = cache.peek().key.coded_rows;
    EXPECT_EQ(coded, std::max(0, tokens - group) / group * group);
    const std::vector<float> keys = cache.decode(Side::key), values = cache.decode(Side::value);
    // Keys: each channel and `group` tokens by itself, so turned they are rows of one group.
    for (int first = 0; first < coded; first += group) {
      std::vector<float> x, y;
      for (int c = 0; c < dim; ++c) {
        for (int t = first; t < first + group; ++t) {
          x.push_back(data.k[static_cast<size_t>(t * dim + c)]);
          y.push_back(keys[static_cast<size_t>(t * dim + c)]);
        }
      }
      expect_row_bound(x, y, group, group, 4);
      EXPECT_NE(x, y);
    }
    const auto n = static_cast<int64_t>(coded) * dim;
    expect_row_bound({data.v.begin(), data.v.begin() + n}, {values.begin(), values.begin() + n}, dim,
                     std::min(group, dim), 4);
    states.push_back(cache.state());
    KVCache same = make(text, data.shape);
    same.set_state(states.back());
    EXPECT_EQ(same.decode(Side::key), keys);
    for (size_t other = 0; other + 1 < states.size(); ++other) EXPECT_THROW(same.set_state(states[other]), FormatError);
  }
}

// manjunathshiva/turboquant-mlx PR#102
TEST(Group, BL_073_an_odd_width_is_quantised_and_counted) {
  const LayerShape shapes[] = {one_head(128), one_head(128), one_head(160), one_head(128)};
  CacheSet set(parse_method("kivi(group=64,residual=64)"), shapes);
  size_t used = 0, fp16 = 0;
  for (int i = 0; i < set.layers(); ++i) {
    const int dim = shapes[i].dim_k;
    const Sequences data(shapes[i], 1, 512);
    set[i].append(data.keys({0, 512}), data.values({0, 512}));
    set[i].commit();
    const CacheStats stats = set[i].peek();
    EXPECT_EQ(stats.key.coded_rows, 512);
    EXPECT_EQ(stats.value.coded_rows, 448);
    // Keys have their groups along tokens; values of 160 channels have one of 64, one of 64 and one of 32.
    EXPECT_EQ(stats.key.coded_bytes, static_cast<size_t>(512 / 64 * dim * (64 * 2 / 8 + 4)));
    EXPECT_EQ(stats.value.coded_bytes, static_cast<size_t>(448 * (dim * 2 / 8 + 4 * ((dim + 63) / 64))));
    const std::vector<float> values = set[i].decode(Side::value);
    EXPECT_GT(relative_l2({values.begin(), values.begin() + 448 * dim}, {data.v.begin(), data.v.begin() + 448 * dim}),
              0.3);
    used += stats.used_bytes;
    fp16 += stats.key.fp16_bytes + stats.value.fp16_bytes;
  }
  EXPECT_EQ(set.used_bytes(), used);
  EXPECT_GT(static_cast<double>(fp16) / static_cast<double>(used), 3.5);
}

// ikawrakow/ik_llama.cpp PR#76
TEST(Group, BL_075_heads_do_not_mix) {
  const int heads = 4;
  for (int dim : {64, 80, 96, 112}) {
    const LayerShape shape{
        .kv_heads = heads, .q_heads = 8, .dim_k = 128, .dim_v = dim, .layer = 0, .input = DType::f16};
    Sequences data(shape, 1, 201);
    for (size_t i = 0; i < data.v.size(); ++i) data.v[i] = static_cast<float>(i / static_cast<size_t>(dim) % heads + 1);
    for (const char* method :
         {"exact", "kivi(bits=2,residual=32)", "kivi(bits=3,group=64,residual=64)", "kivi(bits=4,group=128,residual=0)",
          "kivi(bits=1,group=16,residual=16)", "turboquant_rvq"}) {
      SCOPED_TRACE(method);
      KVCache cache = make(method, shape);
      cache.append(data.keys({0, 200}), data.values({0, 200}));
      const std::vector<float> out = data.step(cache, {200, 201});
      for (size_t i = 0; i < out.size(); ++i) {
        const auto expected = static_cast<float>(i / static_cast<size_t>(dim) / 2 + 1);
        ASSERT_NEAR(out[i], expected, 2e-6f * expected) << i;  // the weights sum to 1 up to fp32 rounding
      }
    }
  }
}

}  // namespace
}  // namespace veloxquant::test
