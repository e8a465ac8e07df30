// Numbers beyond fp16, and numbers that are none: NaN, constant groups, empty sets.
#include <limits>

#include "codec_rows.h"
#include "core/half.h"
#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

// x as it would stand in memory of type `type`.
std::vector<uint16_t> as_half(const std::vector<float>& x, DType type) {
  std::vector<uint16_t> out;
  for (float v : x) out.push_back(type == DType::f16 ? f16_from_f32(v) : bf16_from_f32(v));
  return out;
}

// NVIDIA/kvpress#250, #268, PR#281
TEST(Range, BL_077_absent_rows_are_absent_and_hidden_rows_weigh_nothing) {
  for (DType type : {DType::f16, DType::bf16}) {
    for (float size : {1e-3f, 1.0f, 1e2f}) {
      LayerShape shape = one_head(64);
      shape.input = type;
      const int tokens = 30;
      const std::vector<Range> valid{{0, tokens}, {0, 7}};
      Sequences data(shape, 2, tokens + 1);
      for (float& q : data.q) q *= size;
      const auto q = as_half(data.q, type), k = as_half(data.k, type), v = as_half(data.v, type);
      const auto view = [&](const std::vector<uint16_t>& x, Range r) {
        Tensor t = Tensor::bshd(x.data(), type, 2, tokens + 1, 1, 64);
        t.data = x.data() + int64_t{r.begin} * t.stride_token;
        t.tokens = r.size();
        return t;
      };
      for (const std::string& method : every_method()) {
        SCOPED_TRACE(method);
        KVCache both = make(method, shape), solo = make(method, shape);
        both.append(view(k, {0, tokens}), view(v, {0, tokens}), {{}, valid});
        solo.append(batch_row(view(k, {0, 7}), 1), batch_row(view(v, {0, 7}), 1));
        const Range last{tokens, tokens + 1};
        AttendIn in, own;
        in.q = view(q, last);
        own.q = batch_row(in.q, 1);
        const auto out = both.step(in, view(k, last), view(v, last));
        EXPECT_TRUE(all_finite(out));
        EXPECT_LE(relative_l2({out.begin() + 64, out.end()},
                              solo.step(own, batch_row(view(k, last), 1), batch_row(view(v, last), 1))),
                  1e-6);
      }

      // Rows out of the window may hold the largest numbers of the type.
      KVCache plain = make("exact", shape), extreme = make("exact", shape);
      Sequences loud = data;
      std::fill_n(loud.k.begin(), 64 * (tokens - 4), type == DType::f16 ? 65504.0f : 0x1p125f);
      std::fill_n(loud.v.begin(), 64 * (tokens - 4), type == DType::f16 ? 65504.0f : 0x1p125f);
      AttendIn in;
      in.q = batch_row(data.queries({tokens - 1, tokens}), 0);
      in.window = 4;
      const auto fill = [&](KVCache& cache, const Sequences& from) {
        cache.append(batch_row(from.keys({0, tokens}), 0), batch_row(from.values({0, tokens}), 0));
        cache.commit();
        return cache.attend(in);
      };
      const auto expected = fill(plain, data);
      EXPECT_EQ(fill(extreme, loud), expected);
    }
  }
}

// ml-explore/mlx PR#1379; NVIDIA/Model-Optimizer#18
TEST(Range, BL_078_the_range_of_a_group_is_not_computed_in_fp16) {
  const int dim = 32;
  std::vector<float> x(dim * dim);
  for (int r = 0; r < dim; ++r) {
    for (int c = 0; c < dim; ++c) x[static_cast<size_t>(r * dim + c)] = 40000.0f * static_cast<float>((r + c) % 3 - 1);
  }
  for (int bits : {2, 3, 4, 8}) {
    for (const auto& codec : {affine_row(dim, bits, dim), affine_block(dim, bits, dim)}) {
      const std::vector<float> y = round_trip(*codec, x);
      const float step = 80000.0f / static_cast<float>((1 << bits) - 1);
      const float parameters = 0x1p-11f * (40000.0f + 80000.0f);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_LE(std::fabs(y[i] - x[i]), step / 2 + parameters) << bits << " bits";
        if (x[i] != 0) {
          ASSERT_NEAR(y[i], x[i], x[i] < 0 ? 0 : parameters) << "the ends of the range decode to themselves";
        }
      }
    }
    const Tensor rows = Tensor::bshd(x.data(), DType::f32, 1, dim, 1, dim);
    KVCache cache = make("kivi(group=32,residual=0,bits=" + std::to_string(bits) + ")", one_head(dim));
    cache.append(rows, rows);
    EXPECT_TRUE(all_finite(cache.decode(Side::key)));
    EXPECT_EQ(cache.peek().key.coded_rows, dim);
  }
}

// ikawrakow/ik_llama.cpp PR#1659
TEST(Range, BL_079_sums_over_a_query_block_do_not_overflow) {
  const int dim = 32, rows = 32;
  const std::vector<float> q(dim, 3000.0f);
  std::vector<float> k = gaussian(size_t{rows} * dim, 42);
  for (float& x : k) x += 5;  // zero points far from 0
  for (const auto& codec :
       {affine_block(dim, 4, rows), affine_row(dim, 4, dim), affine_block(dim, 8, 16), int8_row(dim)}) {
    const std::vector<Block> blocks = encode(*codec, k);
    const std::vector<float> decoded = decode(*codec, blocks, rows), got = scores(*codec, q, blocks[0], rows);
    for (int r = 0; r < rows; ++r) {
      double expected = 0;
      for (int c = 0; c < dim; ++c) expected += 3000.0 * double{decoded[static_cast<size_t>(r * dim + c)]};
      EXPECT_NEAR(got[static_cast<size_t>(r)], expected, 1e-3 * std::fabs(expected)) << codec->name();
    }
  }
}

// microsoft/onnxruntime PR#32515: here scales are at most those of bf16, and the attention scale goes to the query
TEST(Range, BL_080_a_large_scale_is_not_multiplied_by_the_attention_scale) {
  LayerShape shape = one_head(1);
  shape.input = DType::bf16;
  const float large = 0x1p125f;  // the largest that is stored: the range of a group must be finite too
  const auto attend = [&](const char* method, float low, float high, float q, float scale) {
    const float k[] = {low, high}, v[] = {1, 5};
    KVCache cache = make(method, shape);
    cache.append(Tensor::bshd(k, DType::f32, 1, 2, 1, 1), Tensor::bshd(v, DType::f32, 1, 2, 1, 1));
    cache.commit();
    EXPECT_EQ(cache.peek().key.coded_rows, 2);
    AttendIn in;
    in.q = Tensor::bshd(&q, DType::f32, 1, 1, 1, 1);
    in.scale = scale;
    return cache.attend(in)[0];
  };
  for (const char* method :
       {"kivi(group=2,residual=0,bits=1)", "kivi(group=2,residual=0,bits=2)", "kivi(group=2,residual=0,bits=3)",
        "kivi(group=2,residual=0,bits=4)", "kivi(group=2,residual=0,bits=8)"}) {
    SCOPED_TRACE(method);
    EXPECT_NEAR(attend(method, 0, large, 0.25f, 2), 5, 1e-3);
    EXPECT_NEAR(attend(method, -large, 0, 0.25f, 2), 5, 1e-3);
    EXPECT_NEAR(attend(method, -large, large, 0.25f, 2), 5, 1e-3);
    EXPECT_NEAR(attend(method, 0, 0x1p-24f, 0.25f, 1e-3f), 3, 1e-3);  // a tiny scale: equal weights
    EXPECT_NEAR(attend(method, 0, 1e-38f, 0.25f, 1e-3f), 3, 1e-3);
  }
}

// turboderp-org/exllamav2#493
TEST(Range, BL_081_a_dot_product_may_pass_the_fp16_range) {
  const int dim = 128, tokens = 70;
  for (DType type : {DType::f16, DType::bf16}) {
    LayerShape shape = one_head(dim);
    shape.input = type;
    const std::vector<float> forty(size_t{tokens} * dim, 40.0f);
    const auto k = as_half(forty, type);
    Sequences data(shape, 1, tokens);
    const auto v = as_half(data.v, type);
    const Tensor keys = Tensor::bshd(k.data(), type, 1, tokens, 1, dim),
                 values = Tensor::bshd(v.data(), type, 1, tokens, 1, dim);
    for (const std::string& method : every_method()) {
      SCOPED_TRACE(method);
      KVCache cache = make(method, shape);
      cache.append(keys, values);
      cache.commit();
      AttendIn in;
      in.q = keys;
      in.q.tokens = 1;
      in.scale = 1;  // logits of 204800 themselves
      const std::vector<float> out = cache.attend(in);
      ASSERT_TRUE(all_finite(out));
      // Exactly equal logits: the weights are equal, and the output is the mean of the stored values.
      if (method.starts_with("turboquant") || method.starts_with("qjl")) continue;
      const std::vector<float> stored = cache.decode(Side::value);
      std::vector<float> mean(dim);
      for (size_t i = 0; i < stored.size(); ++i) mean[i % dim] += stored[i] / tokens;
      EXPECT_LT(relative_l2(out, mean), 2e-2);
    }
  }
  const auto codec = affine_block(dim, 2, 64);
  const std::vector<float> q(dim, 40.0f), k(size_t{64} * dim, 40.0f);
  for (float score : scores(*codec, q, encode(*codec, k)[0], 64)) EXPECT_EQ(score, 204800.0f);
}

// ROCm/aiter#4289
TEST(Range, BL_083_constant_groups_decode_to_themselves) {
  const int dim = 64, rows = 64;
  const std::vector<float> noise = gaussian(size_t{rows} * dim, 42);
  const auto with = [&](auto change) {
    std::vector<float> x = noise;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < dim; ++c) change(r, c, x[static_cast<size_t>(r * dim + c)]);
    }
    return x;
  };
  struct Case {
    const char* name;
    std::vector<float> x;
    bool by_row, by_channel;  // which kind of group is constant
  };
  const Case cases[] = {
      {"channel of zeros", with([](int, int c, float& x) { x = c == 9 ? 0 : x; }), false, true},
      {"token of zeros", with([](int r, int, float& x) { x = r == 9 ? 0 : x; }), true, false},
      {"zeros", with([](int, int, float& x) { x = 0; }), true, true},
      {"3.5", with([](int, int, float& x) { x = 3.5f; }), true, true},
      {"-0", with([](int, int, float& x) { x = -0.0f; }), true, true},
  };
  const auto expect_constant = [&](const Case& c, const std::vector<float>& y, bool rows_are_groups) {
    EXPECT_TRUE(all_finite(y)) << c.name;
    for (int r = 0; r < rows; ++r) {
      for (int ch = 0; ch < dim; ++ch) {
        const auto i = static_cast<size_t>(r * dim + ch);
        const bool whole = c.by_row && c.by_channel;
        if (whole || (c.by_row && rows_are_groups && r == 9) || (c.by_channel && !rows_are_groups && ch == 9)) {
          ASSERT_EQ(y[i], c.x[i]) << c.name;
        }
      }
    }
  };
  for (const Case& c : cases) {
    for (int bits : {1, 2, 3, 4, 8}) {
      expect_constant(c, round_trip(*affine_row(dim, bits, 32), c.x), true);
      expect_constant(c, round_trip(*affine_block(dim, bits, 32), c.x), false);
    }
    // Symmetric and codebook codes claim it for zeros alone.
    for (const auto& codec : {int8_row(dim), lloyd_row({.dim = dim, .bits = 2})}) {
      const std::vector<float> y = round_trip(*codec, c.x);
      EXPECT_TRUE(all_finite(y)) << codec->name() << ", " << c.name;
      for (size_t i = 0; i < y.size(); ++i) {
        if (c.by_row && c.x[i] == 0) {
          ASSERT_EQ(y[i], 0.0f) << codec->name() << ", " << c.name;
        }
      }
    }
    for (DType type : {DType::f16, DType::bf16, DType::f32}) {
      LayerShape shape = one_head(dim);
      shape.input = type;
      const Tensor t = Tensor::bshd(c.x.data(), DType::f32, 1, rows, 1, dim);
      KVCache cache = make("kivi(residual=0)", shape), other = make("kivi(residual=0)", shape);
      cache.append(t, t);
      other.append(Tensor::bshd(noise.data(), DType::f32, 1, rows, 1, dim), t);
      EXPECT_EQ(cache.used_bytes(), other.used_bytes());
      expect_constant(c, cache.decode(Side::key), false);
      AttendIn in;
      in.q = t;
      in.q.tokens = 1;
      EXPECT_TRUE(all_finite(cache.attend(in)));
    }
  }
}

// ml-explore/mlx PR#1016, mlx-examples#692. The affine code claims zero only where it is an end of the group.
TEST(Range, BL_086_zeros_come_back_as_zeros_where_that_is_claimed) {
  const int n = 32;
  std::vector<float> one_sided(n), two_sided(n);
  one_sided[31] = two_sided[31] = 0.7f;
  two_sided[0] = -0.2f;
  for (const auto& codec : {affine_row(n, 4, n), int8_row(n)}) {
    const std::vector<float> y = round_trip(*codec, one_sided);
    for (int c = 0; c < 31; ++c) EXPECT_EQ(y[static_cast<size_t>(c)], 0.0f) << codec->name();
    EXPECT_NEAR(y[31], 0.7f, 2e-3f);
  }
  EXPECT_LE(std::fabs(round_trip(*affine_row(n, 4, n), two_sided)[5]), 0.9f / 15 / 2 + 1e-3f);
  EXPECT_EQ(round_trip(*int8_row(n), two_sided)[5], 0.0f);
  std::vector<float> channel(n * 2);  // the same along tokens
  channel[62] = 0.7f;
  const std::vector<float> along = round_trip(*affine_block(2, 4, n), channel);
  for (int r = 0; r < 31; ++r) EXPECT_EQ(along[static_cast<size_t>(2 * r)], 0.0f);

  // What stands behind the rows and channels in use, here NaN, reaches no sum.
  for (int dim : {1, 5, 12, 33, 80}) {
    const int rows = 5;
    const std::vector<float> x = gaussian(static_cast<size_t>(rows * dim), 42), q(static_cast<size_t>(dim), 1.0f);
    const std::vector<float> weight(rows, 0.5f);
    for (const auto& codec : {raw_rows(DType::f16, dim), affine_row(dim, 4, 32), affine_block(dim, 3, rows),
                              int8_row(dim), lloyd_row({.dim = dim, .bits = 3})}) {
      const std::vector<Block> blocks = encode(*codec, x);
      const std::vector<float> y = decode(*codec, blocks, rows), sum = weighted_sum(*codec, weight, blocks[0]);
      const std::vector<float> score = scores(*codec, q, blocks[0], rows);
      for (int r = 0; r < rows; ++r) {
        double expected = 0;
        for (int c = 0; c < dim; ++c) expected += double{y[static_cast<size_t>(r * dim + c)]};
        EXPECT_NEAR(score[static_cast<size_t>(r)], expected, 1e-4) << codec->name() << " of " << dim;
      }
      for (int c = 0; c < dim; ++c) {
        double expected = 0;
        for (int r = 0; r < rows; ++r) expected += 0.5 * double{y[static_cast<size_t>(r * dim + c)]};
        EXPECT_NEAR(sum[static_cast<size_t>(c)], expected, 1e-4) << codec->name() << " of " << dim;
      }
    }
  }
}

// NVIDIA/kvpress PR#264, #227
TEST(Range, BL_088_attention_over_nothing_has_a_defined_result) {
  const LayerShape shape = one_head(16);
  const Sequences data(shape, 1, 3);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    for (int prompt : {0, 1, 2}) {
      KVCache cache = make(method, shape);
      if (prompt > 0) {
        const std::vector<float> out = data.feed(cache, {prompt});
        EXPECT_LT(relative_l2({out.begin(), out.begin() + 16}, {data.v.begin(), data.v.begin() + 16}), 1e-6)
            << "the first token sees itself alone";
        EXPECT_EQ(cache.size(), prompt);
        EXPECT_EQ(cache.trim(prompt), cache.is_trimmable() ? prompt : 0);
        if (!cache.is_trimmable()) continue;
      }
      EXPECT_THROW(cache.attend(data.attend_in({0, 1})), ShapeError) << "a query without a row of its own";
      EXPECT_EQ(cache.size(), 0);
      EXPECT_TRUE(all_finite(data.feed(cache, {1})));
    }
    // A batch row of padding alone has no rows to attend: zeros.
    KVCache cache = make(method, shape);
    const std::vector<Range> none{{1, 1}};
    const auto out = cache.step(data.attend_in({0, 2}), data.keys({0, 2}), data.values({0, 2}), {{}, none});
    EXPECT_EQ(out, std::vector<float>(2 * 16, 0.0f));
  }
}

}  // namespace
}  // namespace veloxquant::test
