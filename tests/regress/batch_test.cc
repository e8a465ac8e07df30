// Rows of a batch are strangers: no statistic, mask or byte of one may depend on another.
#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

// A batch whose tokens outside `valid` hold `padding` in q, k and v.
Sequences padded(Sequences data, const std::vector<Range>& valid, float padding) {
  for (int b = 0; b < data.batch; ++b) {
    const Range keep = valid[static_cast<size_t>(b)];
    for (int t = 0; t < data.tokens; ++t) {
      if (t >= keep.begin && t < keep.end) continue;
      const LayerShape& s = data.shape;
      for (auto [x, width] : {std::pair{&data.q, s.q_heads * s.dim_k},
                              {&data.k, s.kv_heads * s.dim_k},
                              {&data.v, s.kv_heads * s.dim_v}}) {
        std::fill_n(x->begin() + int64_t{b * data.tokens + t} * width, width, padding);
      }
    }
  }
  return data;
}

// jy-yuan/KIVI#18
TEST(Batch, BL_050_padding_joins_no_statistic) {
  const std::vector<Range> valid{{0, 20}, {8, 20}};
  const Sequences data = padded(Sequences(one_head(32), 2, 20), valid, 1e3f);
  for (const char* method : {"kivi(group=8,residual=8)", "kivi(group=8,residual=8,flush_rule=aligned_window)",
                             "kivi(group=8,residual=8,bits=4)", "turboquant_rvq", "exact"}) {
    SCOPED_TRACE(method);
    KVCache batch = make(method, data.shape);
    const auto out = batch.step(data.attend_in({0, 20}), data.keys({0, 20}), data.values({0, 20}), {{}, valid});
    size_t used = 0;
    for (int b = 0; b < 2; ++b) {
      const Range own = valid[static_cast<size_t>(b)];
      KVCache solo = make(method, data.shape);
      AttendIn in;
      in.q = batch_row(data.queries(own), b);
      const auto expected = solo.step(in, batch_row(data.keys(own), b), batch_row(data.values(own), b));
      const auto first = out.begin() + (b * 20 + own.begin) * 32;
      EXPECT_LE(relative_l2({first, first + own.size() * 32}, expected), 1e-6) << "padding was attended";
      EXPECT_EQ(stored_rows(batch, b).k, stored_rows(solo, 0).k);
      EXPECT_EQ(stored_rows(batch, b).v, stored_rows(solo, 0).v);
      EXPECT_EQ(batch.offset(b), own.size());
      used += solo.used_bytes();
    }
    EXPECT_EQ(batch.used_bytes(), used) << "padding was counted";

    // The same bytes, parameters included, as in a batch that has no padding.
    KVCache tight = make(method, data.shape);
    Tensor k = data.keys({8, 20}), v = data.values({8, 20});
    tight.append(k, v);
    const int second[] = {1};
    batch.select(second);
    tight.select(second);
    EXPECT_EQ(batch.state(), tight.state());
  }
}

// VeloxQuant-MLX#358: the host's batching code must find no merge, and a batch is as packed as its rows alone
TEST(Batch, BL_052_two_requests_at_once_stay_packed) {
  const LayerShape shape = one_head(128);
  const Sequences data(shape, 2, 131);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache two = make(method, shape), one = make(method, shape);
    data.feed(two, {131});
    one.append(batch_row(data.keys({0, 131}), 0), batch_row(data.values({0, 131}), 0));
    EXPECT_EQ(two.used_bytes(), 2 * one.used_bytes());
    EXPECT_EQ(two.peek().key.coded_rows, 2 * one.peek().key.coded_rows);
    EXPECT_FALSE(two.supports_merge());
  }
}

// turboderp-org/exllamav2#215: there is no call over a list of caches; one after the other must not disturb each other
TEST(Batch, BL_055_caches_of_several_codecs_side_by_side_equal_single_calls) {
  const LayerShape shape = one_head(64, 4);
  const char* methods[] = {"exact", "kivi(group=8,residual=8)", "turboquant_rvq"};
  const int lengths[] = {40, 130, 75};
  const Sequences data(shape, 1, 150);
  const auto arena = std::make_shared<Arena>();
  std::vector<KVCache> together;
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < 3; ++i) {
    together.emplace_back(parse_method(methods[i]), shape, arena);
    KVCache alone = make(methods[i], shape);
    data.feed(alone, {lengths[i]});
    expected.push_back(data.feed(alone, ones(10), lengths[i]));
  }
  for (size_t i = 0; i < 3; ++i) data.feed(together[i], {lengths[i]});
  std::vector<std::vector<float>> got(3);
  for (int step = 0; step < 10; ++step) {
    for (size_t i = 0; i < 3; ++i) {
      const auto out = data.feed(together[i], {1}, lengths[i] + step);
      got[i].insert(got[i].end(), out.begin(), out.end());
    }
  }
  EXPECT_EQ(got, expected);
}

// lablup/mlxcel#75, Blaizzy/mlx-vlm#1206, PR#1208. Padding is not stored here: what a row lacks is hidden at the end.
TEST(Batch, BL_056_mask_columns_of_left_padded_rows) {
  const LayerShape shape = one_head(16);
  const std::vector<Range> valid{{3, 5}, {0, 5}};
  const Sequences data = padded(Sequences(shape, 2, 6), {{3, 6}, {0, 6}}, NAN);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache cache = make(method, shape);
    const Mask before = cache.make_mask(5, true);
    EXPECT_EQ(before.queries, 5);
    EXPECT_EQ(before.keys, 5);
    cache.append(data.keys({0, 5}), data.values({0, 5}), {{}, valid});
    const Mask mask = cache.make_mask(1);
    ASSERT_EQ(mask.kind, Mask::Kind::array);
    EXPECT_EQ(mask.batch, 2);
    EXPECT_EQ(mask.keys, 6);
    EXPECT_EQ(mask.allowed, (std::vector<uint8_t>{1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1}));
    EXPECT_EQ(cache.offset(0), 2);
    EXPECT_EQ(cache.offset(1), 5);
    const auto fetched = cache.update_and_fetch(data.keys({5, 6}), data.values({5, 6}));
    EXPECT_EQ(fetched.rows, 6);
    EXPECT_TRUE(all_finite(fetched.k));
    EXPECT_TRUE(std::equal(data.k.begin() + 5 * 16, data.k.begin() + 6 * 16, fetched.k.begin() + 2 * 16))
        << "the new key of the short row stands in the last column that its mask shows";

    KVCache whole = make(method, shape);
    whole.append(batch_row(data.keys({0, 5}), 1), batch_row(data.values({0, 5}), 1));
    EXPECT_EQ(whole.make_mask(1).kind, Mask::Kind::none);
  }
}

}  // namespace
}  // namespace veloxquant::test
