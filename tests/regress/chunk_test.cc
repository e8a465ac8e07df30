// Positions, phases and group borders must not follow from how tokens were cut into calls.
#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

// VeloxQuant-MLX PR#463
TEST(Chunk, BL_002_a_single_query_keeps_its_sliding_window) {
  const Sequences data(one_head(8), 1, 11);
  KVCache cache = make("exact", data.shape);
  data.feed(cache, ones(10));
  const Mask mask = cache.make_mask(1, false, 3);
  ASSERT_EQ(mask.kind, Mask::Kind::array);
  EXPECT_EQ(mask.keys, 11);
  EXPECT_EQ(mask.allowed, (std::vector<uint8_t>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(cache.make_mask(1).kind, Mask::Kind::none);

  DenseRows rows = stored_rows(cache, 0);
  rows.k.insert(rows.k.end(), data.k.end() - 8, data.k.end());
  rows.v.insert(rows.v.end(), data.v.end() - 8, data.v.end());
  rows.rows = 11;
  AttendIn in = data.attend_in({10, 11});
  in.window = 3;
  const auto expected = reference_attention(data.shape, rows, data.q.data() + 80, 1, in);
  EXPECT_LT(relative_l2(cache.step(in, data.keys({10, 11}), data.values({10, 11})), expected), 1e-5);
}

// VeloxQuant-MLX#171, #174, #175, #389, PR#196
TEST(Chunk, BL_006_offset_is_the_true_position) {
  const Sequences data(one_head(16), 1, 24);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache cache = make(method, data.shape);
    data.feed(cache, {16});
    EXPECT_EQ(cache.offset(), 16);
    for (int at = 16; at < 21; ++at) {
      data.feed(cache, {1}, at);
      EXPECT_EQ(cache.offset(), at + 1);
    }
    cache.append(data.keys({21, 24}), data.values({21, 24}));
    EXPECT_EQ(cache.offset(), 24) << "rows that wait for their commit count";
    EXPECT_EQ(cache.size(), 24);
  }
}

// VeloxQuant-MLX PR#163
TEST(Chunk, BL_014_group_borders_do_not_follow_call_borders) {
  const Sequences data(one_head(16), 1, 40);
  for (const char* method : {"kivi(group=8,residual=8,bits=2)",
                             "kivi(group=8,residual=8,bits=2,flush_rule=aligned_window)", "turboquant_rvq"}) {
    SCOPED_TRACE(method);
    KVCache whole = make(method, data.shape);
    data.feed(whole, {40});
    EXPECT_GT(whole.peek().key.coded_rows, 0);
    for (const std::vector<int>& chunks : {ones(40), {7, 7, 7, 7, 7, 5}, {33, 7}}) {
      KVCache cut = make(method, data.shape);
      data.feed(cut, chunks);
      EXPECT_EQ(cut.state(), whole.state());
    }
  }
}

// NVIDIA/kvpress PR#243
TEST(Chunk, BL_017_a_prompt_of_one_token_is_a_prompt) {
  const Sequences data(one_head(32), 1, 5);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache singles = make(method, data.shape), chunk = make(method, data.shape);
    singles.step(data.attend_in({0, 1}), data.keys({0, 1}), data.values({0, 1}), {Phase::prefill_last, {}});
    for (int at = 1; at < 4; ++at) {
      EXPECT_EQ(singles.offset(), at);
      singles.step(data.attend_in({at, at + 1}), data.keys({at, at + 1}), data.values({at, at + 1}),
                   {Phase::decode, {}});
    }
    EXPECT_EQ(singles.offset(), 4);
    EXPECT_EQ(singles.size(), 4);

    chunk.step(data.attend_in({0, 1}), data.keys({0, 1}), data.values({0, 1}), {Phase::prefill_more, {}});
    chunk.step(data.attend_in({1, 5}), data.keys({1, 5}), data.values({1, 5}), {Phase::prefill_last, {}});
    EXPECT_EQ(chunk.offset(), 5);
    data.feed(singles, {1}, 4);
    if (!chunk.method().def->capabilities.chunk_invariant) continue;
    EXPECT_EQ(chunk.state(), singles.state()) << "the phase is not part of what is stored";
  }
}

// huggingface/transformers#34189
TEST(Chunk, BL_018_the_newest_rows_of_a_prompt_stay_exact) {
  const int dim = 16;
  const Sequences data(one_head(dim), 1, 49);
  struct Rule {
    const char* text;
    int key[3], value[3];  // coded rows after 40, 41 and 49 tokens
  };
  for (const Rule& rule : {Rule{"kivi(group=8,residual=16,flush_rule=aligned_window)", {24, 24, 32}, {24, 24, 32}},
                           Rule{"kivi(group=8,residual=16)", {32, 32, 48}, {24, 25, 33}}}) {
    SCOPED_TRACE(rule.text);
    KVCache cache = make(rule.text, data.shape);
    int at = 0;
    for (int i = 0; i < 3; ++i) {
      const int n = i == 0 ? 40 : i == 1 ? 1 : 8;
      data.feed(cache, {n}, at);
      at += n;
      EXPECT_EQ(cache.peek().key.coded_rows, rule.key[i]) << at;
      EXPECT_EQ(cache.peek().value.coded_rows, rule.value[i]) << at;
      for (Side side : kSides) {
        const auto coded = (side == Side::key ? rule.key[i] : rule.value[i]) * dim;
        const std::vector<float>& given = side == Side::key ? data.k : data.v;
        const std::vector<float> stored = cache.decode(side);
        EXPECT_TRUE(std::equal(stored.begin() + coded, stored.end(), given.begin() + coded)) << to_string(side);
        EXPECT_FALSE(std::equal(stored.begin(), stored.begin() + coded, given.begin())) << to_string(side);
      }
    }
  }
}

// VeloxQuant-MLX#162, #86, PR#89
TEST(Chunk, BL_089_decoded_tokens_are_coded_in_groups_of_many_rows) {
  const int dim = 64;
  const Sequences data(one_head(dim), 1, 200);
  KVCache cache = make("kivi(group=32,residual=32,bits=2)", data.shape);
  data.feed(cache, {32});
  data.feed(cache, ones(168), 32);
  EXPECT_EQ(cache.peek().key.coded_rows, 192);
  EXPECT_EQ(cache.peek().value.coded_rows, 168);
  EXPECT_EQ(cache.peek().key.coded_bytes, 6u * 64u * (8u + 4u)) << "one zero and scale per channel and 32 rows";
  for (Side side : kSides) {
    const std::vector<float>& given = side == Side::key ? data.k : data.v;
    const std::vector<float> stored = cache.decode(side);
    const int coded = side == Side::key ? 192 : 168;
    double sum = 0;
    for (int row = 0; row < coded; ++row) {
      double error = 0;
      for (int c = row * dim; c < (row + 1) * dim; ++c) {
        const double d = double{stored[static_cast<size_t>(c)]} - double{given[static_cast<size_t>(c)]};
        error += d * d;
      }
      EXPECT_GT(error / dim, 0.05) << to_string(side) << " row " << row;
      sum += error;
    }
    EXPECT_NEAR(sum / (coded * dim), 0.154, 0.154 * 0.06) << to_string(side);
  }
}

}  // namespace
}  // namespace veloxquant::test
