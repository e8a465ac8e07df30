// The serving contract over a whole model: whatever is selected, copied, split off and joined, every batch row goes on
// as if it had always been alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "support/kept_rows.h"
#include "support/sanitizer.h"
#include "support/tensors.h"
#include "veloxquant/cache_set.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<LayerShape> kLayers = {{.kv_heads = 2, .q_heads = 4, .dim_k = 32, .dim_v = 24, .layer = 0},
                                         {.kv_heads = 1, .q_heads = 3, .dim_k = 64, .dim_v = 64, .layer = 1}};

/// What one sequence has been through: its text, its place in the first call of its life, and its calls.
struct Row {
  int text = 0;
  uint32_t seq = 0;
  std::vector<int> calls = {};
  int tokens() const { return std::accumulate(calls.begin(), calls.end(), 0); }
};

/// Texts of `kTokens` tokens, through all layers.
struct Texts {
  static constexpr int kTexts = 4, kTokens = 200;
  std::vector<Sequences> layers;
  Texts() {
    for (size_t i = 0; i < kLayers.size(); ++i) layers.emplace_back(kLayers[i], kTexts, kTokens, 10 * (i + 1));
  }

  /// One step of `tokens` tokens of every row. Outputs by row, all layers one after another.
  std::vector<std::vector<float>> step(CacheSet& set, std::vector<Row>& rows, int tokens) const {
    std::vector<std::vector<float>> outs(rows.size());
    for (int i = 0; i < set.layers(); ++i) {
      const LayerShape& s = set[i].shape();
      const Sequences& all = layers[static_cast<size_t>(i)];
      const auto gather = [&](const std::vector<float>& from, int width) {
        std::vector<float> x;
        for (const Row& row : rows) {
          const auto first = from.begin() + (row.text * kTokens + row.tokens()) * int64_t{width};
          x.insert(x.end(), first, first + int64_t{tokens} * width);
        }
        return x;
      };
      const auto q = gather(all.q, s.q_heads * s.dim_k), k = gather(all.k, s.kv_heads * s.dim_k),
                 v = gather(all.v, s.kv_heads * s.dim_v);
      const auto n = static_cast<int>(rows.size());
      const auto out = set[i].step({.q = Tensor::bshd(q.data(), DType::f32, n, tokens, s.q_heads, s.dim_k)},
                                   Tensor::bshd(k.data(), DType::f32, n, tokens, s.kv_heads, s.dim_k),
                                   Tensor::bshd(v.data(), DType::f32, n, tokens, s.kv_heads, s.dim_v));
      const int64_t width = int64_t{tokens} * s.q_heads * s.dim_v;
      for (size_t b = 0; b < rows.size(); ++b) {
        const auto first = out.begin() + static_cast<int64_t>(b) * width;
        outs[b].insert(outs[b].end(), first, first + width);
      }
    }
    for (Row& row : rows) row.calls.push_back(tokens);
    return outs;
  }
};

CacheSet make_set(const std::string& method) { return {parse_method(method), kLayers}; }

/// The state of a cache of one batch row, with the `seq` ids told apart from the content.
struct Content {
  uint32_t seq = 0;
  std::vector<std::byte> bytes;
  explicit Content(KVCache& cache) : bytes(cache.state()) {
    EXPECT_EQ(cache.batch(), 1);
    constexpr size_t kHeader = 20;  // magic, version, hash
    uint32_t signature = 0;
    std::memcpy(&signature, bytes.data() + kHeader, sizeof signature);
    const size_t at = kHeader + sizeof signature + signature + sizeof(uint32_t);
    std::memcpy(&seq, bytes.data() + at, sizeof seq);
    std::fill_n(bytes.begin() + static_cast<int64_t>(at), sizeof seq, std::byte{0});
    bytes.erase(bytes.begin(), bytes.begin() + kHeader);
  }
};

/// Every row of the set holds the bytes of a set that was fed its calls alone, and answers the next call alike.
void expect_rows_equal_solo_runs(const std::string& method, const Texts& texts, CacheSet& set,
                                 const std::vector<Row>& rows) {
  ASSERT_EQ(set.batch(), static_cast<int>(rows.size()));
  CacheSet next = set.copy();
  std::vector<Row> after = rows;
  const auto outs = texts.step(next, after, 3);
  for (size_t b = 0; b < rows.size(); ++b) {
    SCOPED_TRACE(testing::Message() << "batch row " << b << ", text " << rows[b].text);
    CacheSet solo = make_set(method);
    std::vector<Row> alone{{.text = rows[b].text}};
    for (int tokens : rows[b].calls) texts.step(solo, alone, tokens);
    const std::vector<int> only{static_cast<int>(b)};
    EXPECT_EQ(set.offset(only[0]), solo.offset());
    CacheSet one = set.copy(only);
    for (int i = 0; i < set.layers(); ++i) {
      const Content mine(one[i]), expected(solo[i]);
      EXPECT_EQ(mine.bytes, expected.bytes) << "layer " << i;
      EXPECT_EQ(mine.seq, rows[b].seq) << "layer " << i;
    }
    EXPECT_EQ(outs[b], texts.step(solo, alone, 3)[0]);
  }
}

const char* const kMethods[] = {
    "exact",
    "kivi(group=8,residual=16)",
    "kivi_sink(group=8,residual=16)",
    "turboquant_rvq",
    "h2o(budget=40,grace=8)",
    "snapkv(budget=40,window=8)",
    "snapkv(budget=40,window=8)+kivi(group=8,residual=16)",
    "streaming_llm(window=36)",
    "streaming_llm(window=36)+kivi(group=8,residual=16)",
    "turboquant_mse(two_stream=true,outliers=5,calibration=50)",
};

TEST(CacheSet, batch_rows_go_on_as_if_alone) {
  const Texts texts;
  for (const std::string method : kMethods) {
    SCOPED_TRACE(method);
    CacheSet set = make_set(method);
    std::vector<Row> rows{{.text = 0, .seq = 0}, {.text = 1, .seq = 1}};
    texts.step(set, rows, 70);
    texts.step(set, rows, 1);
    {  // an arena of its own, which ends here
      CacheSet other = make_set(method);
      std::vector<Row> more{{.text = 2, .seq = 0}, {.text = 3, .seq = 1}};
      texts.step(other, more, 41);
      set.join(std::move(other));
      rows.insert(rows.end(), more.begin(), more.end());
    }
    expect_rows_equal_solo_runs(method, texts, set, rows);
    texts.step(set, rows, 1);
    texts.step(set, rows, 30);

    CacheSet apart = set.split(std::vector<int>{3, 0});
    std::vector<Row> apart_rows{rows[3], rows[0]};
    rows = {rows[1], rows[2]};
    texts.step(set, rows, 5);
    texts.step(apart, apart_rows, 2);
    expect_rows_equal_solo_runs(method, texts, set, rows);
    expect_rows_equal_solo_runs(method, texts, apart, apart_rows);

    set.select(std::vector<int>{1, 0, 1});
    rows = {rows[1], rows[0], rows[1]};
    CacheSet copy = set.copy();
    std::vector<Row> copy_rows = rows;
    texts.step(set, rows, 4);
    texts.step(copy, copy_rows, 1);
    copy.join(std::move(apart));  // of the same arena
    copy_rows.insert(copy_rows.end(), apart_rows.begin(), apart_rows.end());
    texts.step(copy, copy_rows, 1);
    expect_rows_equal_solo_runs(method, texts, set, rows);
    expect_rows_equal_solo_runs(method, texts, copy, copy_rows);
  }
}

TEST(CacheSet, pending_rows_are_settled_before_rows_move) {
  const Texts texts;
  const auto pending = [&](CacheSet& set, int tokens) {
    for (int i = 0; i < set.layers(); ++i) {
      const Sequences& data = texts.layers[static_cast<size_t>(i)];
      set[i].append(data.keys({0, tokens}), data.values({0, tokens}));
    }
  };
  CacheSet expected = make_set("kivi(group=8,residual=16)");
  pending(expected, 60);
  const auto state = expected.state();
  const std::vector<int> all{0, 1, 2, 3};

  CacheSet set = make_set("kivi(group=8,residual=16)"), other = make_set("kivi(group=8,residual=16)");
  pending(set, 60);
  EXPECT_EQ(set.copy(all).state(), state);
  pending(other, 60);
  EXPECT_EQ(other.split(all).state(), state);
  EXPECT_TRUE(other.empty());
  CacheSet third = make_set("kivi(group=8,residual=16)");
  pending(third, 60);
  other.join(std::move(third));
  EXPECT_EQ(other.state(), state);
  EXPECT_EQ(third.batch(), 0);  // empty, and still a set
  pending(third, 60);
  EXPECT_EQ(third.state(), state);
}

TEST(CacheSet, a_joined_set_gives_its_memory_back) {
  const Texts texts;
  CacheSet set = make_set("turboquant_rvq"), other = make_set("turboquant_rvq");
  std::vector<Row> rows{{.text = 0}}, more{{.text = 1}};
  texts.step(set, rows, 150);
  texts.step(other, more, 150);
  const size_t each = set.arena().allocated_bytes;
  EXPECT_EQ(other.arena().allocated_bytes, each);
  set.join(std::move(other));
  EXPECT_EQ(other.arena().allocated_bytes, 0u);  // empty, and still a set
  EXPECT_EQ(set.arena().allocated_bytes, 2 * each);
  EXPECT_EQ(set.used_bytes(), 2 * set.copy(std::vector<int>{0}).used_bytes());
  CacheSet apart = set.split(std::vector<int>{1});
  EXPECT_EQ(set.arena().allocated_bytes, 2 * each) << "no row was copied";
  set.join(std::move(apart));
  EXPECT_EQ(set.arena().peak_bytes, 2 * each) << "nor was it on the way back";
  apart = set.split(std::vector<int>{0});
  set.reset();
  EXPECT_EQ(set.arena().allocated_bytes, each);
}

TEST(CacheSet, rows_of_another_configuration_are_refused_by_name) {
  const Texts texts;
  const std::string method = "kivi(group=8,residual=16)";
  CacheSet set = make_set(method);
  std::vector<Row> rows{{.text = 0}, {.text = 1}};
  texts.step(set, rows, 50);
  const auto before = set.state();
  const auto refused = [&](CacheSet other, const std::string& expected) {
    SCOPED_TRACE(expected);
    for (int i = 0; i < other.layers(); ++i) {
      const Sequences data(other[i].shape(), 1, 20);
      data.store(other[i], {0, 20});
    }
    const auto given = other.state();
    try {
      set.join(std::move(other));
      ADD_FAILURE() << "it was joined";
    } catch (const QuantizerConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(expected));
    }
    EXPECT_EQ(set.state(), before);
    EXPECT_EQ(other.state(), given);  // it was not joined
  };
  refused(make_set("exact"), "method: kivi here, exact given");
  refused(make_set("kivi(group=8,residual=32)"), "layer 0: residual_length: 16 here, 32 given");
  refused(make_set("kivi(group=8,residual=16,dtype=f32)"), "type of exact rows: f16 here, f32 given");
  refused(make_set("kivi(group=8,residual=16,attend_precision=float)"), "attend_precision: 2term here, float given");
  refused(make_set("snapkv+" + method), "method: kivi here, snapkv given");
  refused({parse_method(method), std::span(kLayers).first(1)}, "layers: 2 here, 1 given");
  const auto with = [&](auto change) {
    std::vector<LayerShape> shapes = kLayers;
    change(shapes[1]);
    return CacheSet(parse_method(method), shapes);
  };
  refused(with([](LayerShape& s) { s.dim_v = 32; }), "layer 1: dim_v: 64 here, 32 given");
  refused(with([](LayerShape& s) { s.q_heads = 1; }), "layer 1: q_heads: 3 here, 1 given");
  refused(with([](LayerShape& s) { s.input = DType::bf16; }), "layer 1: input type: f32 here, bf16 given");
}

TEST(CacheSet, rows_that_do_not_exist_and_rows_named_twice_change_no_layer) {
  const Texts texts;
  CacheSet set = make_set("turboquant_rvq");
  EXPECT_THROW(set.select(std::vector<int>{0}), std::out_of_range) << "there are no rows yet";
  std::vector<Row> rows{{.text = 0}, {.text = 1}};
  texts.step(set, rows, 20);
  const auto before = set.state();
  for (const std::vector<int>& wrong : {std::vector<int>{2}, {0, -1}}) {
    EXPECT_THROW(set.select(wrong), std::out_of_range);
    EXPECT_THROW(set.copy(wrong), std::out_of_range);
    EXPECT_THROW(set.split(wrong), std::out_of_range);
    EXPECT_EQ(set.state(), before);
  }
  EXPECT_THROW(set.split(std::vector<int>{1, 1}), std::invalid_argument);
  EXPECT_THROW(set.join(std::move(set)), std::invalid_argument);
  EXPECT_EQ(set.state(), before);  // it was not joined
  EXPECT_THROW(set.offset(2), std::out_of_range);
  EXPECT_THROW(set.make_mask(1, false, 0, 2), std::out_of_range);

  CacheSet half = make_set("turboquant_rvq");
  const Sequences one(kLayers[0], 1, 20);
  one.store(half[0], {0, 20});
  EXPECT_THROW(set.join(std::move(half)), UnsupportedOperation) << "a batch row would be another one in layer 1";
  EXPECT_EQ(set.state(), before);
  EXPECT_EQ(half[0].offset(), 20);  // it was not joined
}

TEST(CacheSet, state_round_trip_continues_bit_for_bit) {
  const Texts texts;
  for (const std::string method : kMethods) {
    SCOPED_TRACE(method);
    CacheSet set = make_set(method), restored = make_set(method);
    std::vector<Row> rows{{.text = 2}, {.text = 0}};
    restored.set_state(set.state());
    EXPECT_TRUE(restored.empty());
    texts.step(set, rows, 66);
    std::vector<Row> stale{{.text = 3}};
    texts.step(restored, stale, 5);
    restored.set_state(set.state());
    EXPECT_EQ(restored.state(), set.state());
    EXPECT_EQ(restored.used_bytes(), set.used_bytes());
    std::vector<Row> again = rows;
    EXPECT_EQ(texts.step(restored, again, 1), texts.step(set, rows, 1));
  }
}

TEST(CacheSet, damaged_states_are_refused_and_change_no_layer) {
  const std::vector<LayerShape> layers(2, LayerShape{.dim_k = 4, .dim_v = 4});
  const auto fed = [&](int tokens) {
    CacheSet set(parse_method("exact"), layers);
    const Sequences data(layers[0], 1, tokens);
    for (int i = 0; i < set.layers(); ++i) data.store(set[i], {0, tokens});
    return set;
  };
  CacheSet source = fed(2), target = fed(3);
  const auto good = source.state(), before = target.state();
  for (size_t i = 0; i < good.size(); ++i) {
    auto bad = good;
    bad[i] ^= std::byte{0x11};
    EXPECT_THROW(target.set_state(bad), FormatError) << "byte " << i;
    EXPECT_THROW(target.set_state(std::span(good).first(i)), FormatError) << "cut at " << i;
    ASSERT_EQ(target.state(), before);
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_THROW(target.set_state(longer), FormatError);
  CacheSet shorter(parse_method("exact"), std::span(layers).first(1));
  EXPECT_THROW(shorter.set_state(good), FormatError);
  // The first layer would take its state, the second would not.
  const std::vector<MethodSpec> methods{parse_method("exact"), parse_method("turboquant_rvq")};
  CacheSet mixed(methods, layers);
  EXPECT_THROW(mixed.set_state(good), FormatError);
  EXPECT_TRUE(mixed.empty());
  EXPECT_EQ(target.state(), before);
  target.set_state(good);
  EXPECT_EQ(target.state(), good);
}

TEST(CacheSet, every_layer_can_have_its_method) {
  const Texts texts;
  const std::vector<MethodSpec> methods{parse_method("streaming_llm(window=20,n_sink=2)"), parse_method("exact")};
  CacheSet set(methods, kLayers);
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(set.offset(), 0);
  EXPECT_EQ(set.size(), 0);
  EXPECT_EQ(set.layers(), 2);
  std::vector<Row> rows{{.text = 0}};
  texts.step(set, rows, 60);
  EXPECT_FALSE(set.empty());
  EXPECT_EQ(set.size(), 60) << "of the layer with the most";
  EXPECT_EQ(set[0].size(), 22);
  EXPECT_EQ(set.offset(0), 60);
  EXPECT_FALSE(set.is_trimmable()) << "one layer drops rows";
  EXPECT_EQ(set.trim(1), 0);
  EXPECT_EQ(set.make_mask(2, true, 0, 0).keys, 24);
  EXPECT_EQ(set.make_mask(2, true).keys, 24);
  EXPECT_EQ(set.make_mask(2, true, 0, 1).keys, 62);
  EXPECT_EQ(set.used_bytes(), set[0].used_bytes() + set[1].used_bytes());
  EXPECT_EQ(set.nbytes(), set[0].nbytes() + set[1].nbytes());
  EXPECT_TRUE(make_set("exact").is_trimmable());

  try {
    CacheSet wrong{std::span(methods).first(1), kLayers};
    FAIL() << "it was accepted";
  } catch (const QuantizerConfigError& error) {
    EXPECT_THAT(error.problems(), ElementsAre("methods: got 1, must be 2, one a layer"));
  }
  const std::vector<MethodSpec> bad(2, parse_method("qjl(m=4096)"));
  try {
    CacheSet wrong(bad, kLayers);
    FAIL() << "it was accepted";
  } catch (const QuantizerConfigError& error) {
    ASSERT_EQ(error.problems().size(), 2u) << "those of all layers";
    EXPECT_THAT(error.problems()[1], HasSubstr("layer 1"));
  }
}

TEST(CacheSet, counters_stay_when_rows_move) {
  const Texts texts;
  CacheSet set = make_set("h2o(budget=40,grace=8)");
  std::vector<Row> rows{{.text = 0}, {.text = 1}};
  texts.step(set, rows, 60);
  const double seconds = set.commit_seconds();
  EXPECT_GT(seconds, 0);
  const int64_t calls = set[0].peek().calls.true_query;
  EXPECT_GT(calls, 0);
  set.select(std::vector<int>{1});
  EXPECT_EQ(set.commit_seconds(), seconds);
  EXPECT_EQ(set[0].peek().calls.true_query, calls);
}

}  // namespace
}  // namespace veloxquant::test
