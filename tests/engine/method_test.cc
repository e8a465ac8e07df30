// What single methods promise beyond what holds for all of them.
#include <gtest/gtest.h>

#include <cmath>

#include "support/reference_attention.h"
#include "support/sanitizer.h"
#include "support/tensors.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

TEST(Exact, f32_rows_equal_dense_attention) {
  const LayerShape shape{2, 6, 64, 64, 0, DType::f32};
  const int n = sized(900, 300);
  const Sequences data(shape, 1, n);
  KVCache cache(parse_method("exact(dtype=f32)"), shape);
  const auto out = data.feed(cache, chunks_of(n, 128));
  const auto expected = reference_attention(shape, {n, data.k, data.v}, data.q.data(), n, {});
  EXPECT_LT(relative_l2(out, expected), 2e-6);
  EXPECT_EQ(rows_of(cache.decode(Side::key), 0, 2, n, 64, n), data.k);
}

TEST(Exact, long_contexts_cross_spans) {
  const LayerShape shape{1, 2, 64, 64, 0, DType::f16};
  const Sequences data(shape, 1, 6300);
  KVCache cache(parse_method("exact"), shape);
  data.store(cache, {0, 6200});
  DenseRows store{6201, {data.k.begin(), data.k.begin() + 6201 * 64}, {data.v.begin(), data.v.begin() + 6201 * 64}};
  const auto one = data.step(cache, {6200, 6201});
  EXPECT_LT(relative_l2(one, reference_attention(shape, store, &data.q[6200 * 128], 1, {})), 5e-6);
  store = {6300, data.k, data.v};
  const auto many = data.step(cache, {6201, 6300});
  EXPECT_LT(relative_l2(many, reference_attention(shape, store, &data.q[6201 * 128], 99, {})), 5e-6);
}

TEST(Kivi, scaling_a_key_channel_leaves_the_other_channels_as_they_were) {
  const LayerShape shape{1, 1, 64, 64, 0, DType::f32};
  Sequences data(shape, 1, 128);
  KVCache before(parse_method("kivi"), shape), after(parse_method("kivi"), shape);
  data.feed(before, {128});
  for (int t = 0; t < 128; ++t) data.k[static_cast<size_t>(t * 64 + 5)] *= 100;
  data.feed(after, {128});
  const auto a = before.decode(Side::key), b = after.decode(Side::key);
  for (size_t i = 0; i < a.size(); ++i) {
    if (i % 64 == 5) continue;
    ASSERT_EQ(a[i], b[i]);
  }
}

// The window is what carries a 2-bit cache: without it the error is clearly larger.
TEST(Kivi, error_grows_when_the_window_goes) {
  const LayerShape shape{1, 1, 64, 64, 0, DType::f16};
  const Sequences data(shape, 1, 700);
  KVCache exact(parse_method("exact"), shape), window(parse_method("kivi"), shape),
      none(parse_method("kivi(residual=0)"), shape);
  const auto expected = data.feed(exact, {600, 100});
  const double with = relative_l2(data.feed(window, {600, 100}), expected);
  const double without = relative_l2(data.feed(none, {600, 100}), expected);
  EXPECT_GT(with, 0.001);
  EXPECT_GT(without, with);
}

TEST(Capacity, is_refused_before_anything_is_stored) {
  const LayerShape shape{1, 1, 64, 64, 0, DType::f32};
  const Sequences data(shape, 1, 101);
  KVCache cache(parse_method("turboquant_rvq(capacity=100)"), shape);
  data.feed(cache, {100});
  const auto state = cache.state();
  EXPECT_THROW(data.step(cache, {100, 101}), CapacityError);
  EXPECT_EQ(cache.state(), state);
  cache.trim(1);
  data.step(cache, {99, 100});
  EXPECT_EQ(cache.state(), state);
}

TEST(Capacity, fused_sdpa_max_ctx_is_the_same_limit_and_the_smaller_one_holds) {
  const LayerShape shape{1, 1, 64, 64, 0, DType::f32};
  const Sequences data(shape, 1, 101);
  for (const char* method : {"kivi(fused_sdpa_max_ctx=100)", "exact(capacity=200,fused_sdpa_max_ctx=100)",
                             "exact(capacity=100,fused_sdpa_max_ctx=200)"}) {
    KVCache cache(parse_method(method), shape);
    data.feed(cache, {100});
    EXPECT_THROW(data.step(cache, {100, 101}), CapacityError) << method;
    EXPECT_EQ(cache.offset(), 100);
  }
}

TEST(FusedSdpa, memory_bound_caches_attend_and_fetch_nothing) {
  const LayerShape shape{1, 1, 64, 64, 0, DType::f32};
  const Sequences data(shape, 1, 200);
  KVCache plain(parse_method("kivi"), shape),
      bound(parse_method("kivi(fused_sdpa=true,fused_sdpa_memory_bound=true)"), shape);
  EXPECT_EQ(data.feed(bound, {150, 1}), data.feed(plain, {150, 1}));
  const auto state = bound.state();
  EXPECT_EQ(state, plain.state()) << "no byte depends on the flags";
  EXPECT_THROW(bound.update_and_fetch(data.keys({151, 152}), data.values({151, 152})), UnsupportedOperation);
  EXPECT_THROW(bound.decode(Side::key), UnsupportedOperation);
  EXPECT_EQ(bound.state(), state);
  EXPECT_THROW(KVCache(parse_method("kivi(fused_sdpa_memory_bound=true)"), shape), QuantizerConfigError);
}

TEST(QueryHeads, where_the_shape_leaves_them_open_any_multiple_is_served) {
  const LayerShape open{2, 0, 64, 64, 0, DType::f32}, six{2, 6, 64, 64, 0, DType::f32};
  const Sequences data(six, 1, 200);
  KVCache a(parse_method("kivi"), open), b(parse_method("kivi"), six);
  EXPECT_EQ(data.feed(a, {150, 1, 49}), data.feed(b, {150, 1, 49}));
  const std::vector<float> q(5 * 64);
  EXPECT_THROW(a.attend({.q = Tensor::bshd(q.data(), DType::f32, 1, 1, 5, 64)}), ShapeError);
}

TEST(ElementType, values_beyond_fp16_need_another_type) {
  const LayerShape shape{1, 1, 64, 64, 0, DType::f32};
  Sequences data(shape, 1, 40);
  data.v[7] = 1e5f;
  KVCache half(parse_method("kivi"), shape), single(parse_method("kivi(dtype=f32,residual=0)"), shape);
  EXPECT_THROW(data.step(half, {0, 40}), ValueError);
  EXPECT_TRUE(half.empty());
  data.step(single, {0, 40});
  const auto v = single.decode(Side::value);
  EXPECT_NEAR(v[7], 1e5f, 1e5f * 0.01f) << "bf16 parameters hold what fp16 cannot";
}

TEST(Seeds, layers_and_seeds_draw_their_own_rotations) {
  const Sequences data({1, 1, 64, 64, 0, DType::f32}, 1, 64);
  const auto keys = [&](const char* method, int layer) {
    LayerShape shape = data.shape;
    shape.layer = layer;
    KVCache cache(parse_method(method), shape);
    data.feed(cache, {64});
    return cache.decode(Side::key);
  };
  EXPECT_EQ(keys("turboquant_rvq(seed=5)", 1), keys("turboquant_rvq(seed=6)", 0)) << "seed + layer";
  EXPECT_NE(keys("turboquant_rvq(seed=5)", 0), keys("turboquant_rvq(seed=6)", 0));
  EXPECT_EQ(keys("turboquant_rvq", 3), keys("turboquant_rvq(seed=42)", 3));
}

TEST(Mask, array_follows_window_and_rows) {
  const LayerShape shape{1, 1, 64, 64, 0, DType::f32};
  const Sequences data(shape, 1, 10);
  KVCache cache(parse_method("exact"), shape);
  data.feed(cache, {10});
  const Mask mask = cache.make_mask(2, true, 3);
  ASSERT_EQ(mask.kind, Mask::Kind::array);
  ASSERT_EQ(mask.keys, 12);
  const std::vector<uint8_t> expected{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1};
  EXPECT_EQ(mask.allowed, expected);
  EXPECT_EQ(cache.make_mask(1).kind, Mask::Kind::none);
  EXPECT_EQ(cache.make_mask(1, false, 3).kind, Mask::Kind::array);
  EXPECT_EQ(cache.make_mask(4).kind, Mask::Kind::causal);
}

TEST(Attend, several_threads_need_a_pending_append_where_rows_are_split) {
  const LayerShape shape{1, 1, 64, 64, 0, DType::f32};
  const Sequences data(shape, 1, 5000);
  KVCache cache(parse_method("exact"), shape);
  data.store(cache, {0, 5000});
  std::vector<float> out(64);
  EXPECT_THROW(cache.attend(data.attend_in({4999, 5000}), {out.data(), 64, 64, 64}, 0, 2), ShapeError);
  EXPECT_EQ(cache.attend(data.attend_in({4999, 5000})).size(), 64u);
}

TEST(Attend, ragged_rows_with_splits_equal_solo_caches) {
  const LayerShape shape{2, 4, 64, 64, 0, DType::f32};
  const Sequences data(shape, 2, 5003);
  KVCache both(parse_method("kivi"), shape);
  data.store(both, {0, 5000});
  const std::vector<Range> valid{{0, 3}, {2, 3}};
  const auto out = both.step(data.attend_in({5000, 5003}), data.keys({5000, 5003}), data.values({5000, 5003}),
                             {Phase::automatic, valid});
  for (int b : {0, 1}) {
    KVCache solo(parse_method("kivi"), shape);
    const auto row = [&](Tensor t) {
      t.data = static_cast<const float*>(t.data) + b * t.stride_batch;
      t.batch = 1;
      return t;
    };
    const Range own{5000 + valid[static_cast<size_t>(b)].begin, 5003};
    solo.append(row(data.keys({0, 5000})), row(data.values({0, 5000})));
    AttendIn in;
    in.q = row(data.queries(own));
    const auto expected = solo.step(in, row(data.keys(own)), row(data.values(own)));
    const auto end = out.begin() + (b + 1) * 3 * 256;
    EXPECT_EQ(std::vector<float>(end - static_cast<int64_t>(expected.size()), end), expected) << "batch row " << b;
  }
}

// Weights are summed up tile by tile, and a row's tiles begin with its own first token.
TEST(Attend, scores_of_a_padded_row_are_those_it_has_alone) {
  const LayerShape shape{2, 4, 64, 64, 0, DType::f32};
  const Sequences data(shape, 2, 300);
  const std::vector<Range> valid{{0, 300}, {37, 300}};
  for (const char* method : {"h2o(budget=100)", "tova(budget=100)", "snapkv(budget=100)"}) {
    KVCache both(parse_method(method), shape), solo(parse_method(method), shape);
    both.step(data.attend_in({0, 300}), data.keys({0, 300}), data.values({0, 300}), {Phase::prefill_last, valid});
    const auto second = [](Tensor t) {
      t.data = static_cast<const float*>(t.data) + t.stride_batch;
      t.batch = 1;
      return t;
    };
    const Range own{37, 300};
    solo.step({.q = second(data.queries(own))}, second(data.keys(own)), second(data.values(own)),
              {Phase::prefill_last, {}});
    for (int head : {0, 1}) {
      EXPECT_EQ(both.positions(1, head), solo.positions(0, head)) << method;
      EXPECT_EQ(both.scores(1, head), solo.scores(0, head)) << method;
    }
  }
}

TEST(Composition, a_placement_that_cuts_units_is_refused_by_name) {
  static const MethodDef kBad = [] {
    MethodDef def = *find_method("kivi");
    def.build = [](const Options& o, const BuildContext& c) {
      Recipe recipe = find_method("kivi")->build(o, c);
      recipe.placement = direct();
      return recipe;
    };
    return def;
  }();
  MethodSpec spec = parse_method("kivi");
  spec.def = &kBad;
  try {
    KVCache cache(spec, {1, 1, 64, 64, 7, DType::f32});
    FAIL() << "it was accepted";
  } catch (const QuantizerConfigError& error) {
    ASSERT_EQ(error.problems().size(), 1u);
    EXPECT_EQ(error.problems()[0], "layer 7: placement direct seals single rows, key codec affine2 needs units of 32");
  }
}

}  // namespace
}  // namespace veloxquant::test
