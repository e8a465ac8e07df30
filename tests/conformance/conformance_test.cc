// Properties that every method must have on every shape: the engine's promises, checked over the registry. A new method
// is covered by existing.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include <fmt/format.h>

#include "support/reference_attention.h"
#include "support/sanitizer.h"
#include "support/tensors.h"
#include "veloxquant/cache_set.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

struct Case {
  std::string method;
  LayerShape shape;
  int batch;
  friend void PrintTo(const Case& c, std::ostream* os) { *os << c.method; }
};

// Every method with its defaults and with every legal value of its choices; small windows, so that few tokens cross
// every frontier.
std::vector<std::string> methods() {
  std::vector<std::string> texts;
  for (const MethodDef* def : built_methods()) {
    texts.emplace_back(def->name);
    if (def->chooses_rows) continue;  // their defaults drop nothing here: tests/engine/eviction_test.cc does
    for (const OptionSpec& option : def->options) {
      for (std::string_view choice : option.choices) {
        texts.push_back(fmt::format("{}({}={})", def->name, option.name, choice));
      }
    }
  }
  for (const char* dtype : {"f32", "bf16"}) texts.push_back(fmt::format("exact(dtype={})", dtype));
  for (int bits : {1, 3, 4, 8}) texts.push_back(fmt::format("kivi(bits={},group=8,residual=16)", bits));
  texts.emplace_back("kivi(group=8,residual=16,flush_rule=aligned_window)");
  texts.emplace_back("kivi(group=48,residual=0)");
  for (int bits : {1, 3, 4}) texts.push_back(fmt::format("turboquant_rvq(bits={})", bits));
  for (const char* precision : {"float", "fast"}) {
    texts.push_back(fmt::format("kivi(bits=4,attend_precision={})", precision));
    texts.push_back(fmt::format("turboquant_rvq(value_codec=turboquant_mse,attend_precision={})", precision));
  }
  return texts;
}

std::vector<Case> cases() {
  struct Geometry {
    int kv_heads, q_heads, dim_k, dim_v, batch;
  };
  // Every head size, group size and batch of the standard list at least once, keys and values of unequal size too.
  constexpr Geometry kGeometries[] = {{1, 1, 12, 12, 1},   {2, 8, 64, 64, 2},   {1, 7, 80, 80, 3},   {2, 2, 96, 96, 1},
                                      {1, 4, 128, 128, 2}, {1, 2, 256, 256, 1}, {2, 4, 192, 128, 2}, {1, 1, 72, 40, 1}};
  std::vector<Case> all;
  const auto texts = methods();
  for (size_t i = 0; i < texts.size(); ++i) {
    // All geometries for plain names, two for every variant, rotating; one for all under a sanitizer.
    const bool plain = texts[i].find('(') == std::string::npos;
    for (size_t g = 0; g < std::size(kGeometries); ++g) {
      const bool first = g == i % std::size(kGeometries), second = g == (i + 3) % std::size(kGeometries);
      if (!first && (kSanitized || (!plain && !second))) continue;
      const Geometry& x = kGeometries[g];
      all.push_back({texts[i], {x.kv_heads, x.q_heads, x.dim_k, x.dim_v, 3, DType::f32}, x.batch});
    }
  }
  return all;
}

class Conformance : public testing::TestWithParam<Case> {
 protected:
  KVCache make() const { return KVCache(parse_method(GetParam().method), GetParam().shape); }
  const LayerShape& shape() const { return GetParam().shape; }
  int batch() const { return GetParam().batch; }
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = fmt::format("{}_h{}q{}_d{}v{}_b{}", c.method, c.shape.kv_heads, c.shape.q_heads, c.shape.dim_k,
                                 c.shape.dim_v, c.batch);
  for (char& x : name) {
    if (!std::isalnum(static_cast<unsigned char>(x))) x = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Registry, Conformance, testing::ValuesIn(cases()), case_name);

// Of outputs, relative L2, against attention over decoded rows.
double rounding(const KVCache& cache) {
  const std::string& precision = cache.method().options.choice("attend_precision");
  return precision == "float" || cache.method().def->name == "exact" ? 1e-5 : precision == "2term" ? 1e-3 : 0.05;
}

// Outputs of one step against fp64 attention over the rows stored before it and its own rows as received.
void expect_step_equals_reference(KVCache& cache, const Sequences& data, Range r, AttendIn how = {}) {
  const LayerShape& s = cache.shape();
  std::vector<DenseRows> stores;
  for (int b = 0; b < data.batch; ++b) stores.push_back(cache.batch() ? stored_rows(cache, b) : DenseRows{});
  how.q = data.queries(r);
  const std::vector<float> got = cache.step(how, data.keys(r), data.values(r));
  const int n = r.size();
  for (int b = 0; b < data.batch; ++b) {
    DenseRows& store = stores[static_cast<size_t>(b)];
    const size_t token = static_cast<size_t>(b * data.tokens + r.begin);
    const auto own = [&](const std::vector<float>& x, int heads, int dim) {
      return std::span(x).subspan(token * static_cast<size_t>(heads * dim), static_cast<size_t>(n * heads * dim));
    };
    const auto k = own(data.k, s.kv_heads, s.dim_k), v = own(data.v, s.kv_heads, s.dim_v);
    store.k.insert(store.k.end(), k.begin(), k.end());
    store.v.insert(store.v.end(), v.begin(), v.end());
    store.rows += n;
    const auto expected = reference_attention(s, store, own(data.q, s.q_heads, s.dim_k).data(), n, how);
    const size_t size = expected.size();
    const std::vector<float> mine(got.begin() + static_cast<int64_t>(static_cast<size_t>(b) * size),
                                  got.begin() + static_cast<int64_t>(static_cast<size_t>(b + 1) * size));
    EXPECT_LT(relative_l2(mine, expected), rounding(cache)) << "batch row " << b << ", rows " << store.rows;
  }
}

TEST_P(Conformance, step_equals_attention_over_stored_and_own_rows) {
  const Sequences data(shape(), batch(), 200);
  KVCache cache = make();
  int at = 0;
  for (int n : {1, 2, 33, 1, 92, 1, 40, 30}) {
    expect_step_equals_reference(cache, data, {at, at + n});
    at += n;
    EXPECT_EQ(cache.offset(), at);
    EXPECT_EQ(cache.size(), at);
  }
}

TEST_P(Conformance, scale_softcap_window_chunk_bias_alibi_and_sinks_hold) {
  const Sequences data(shape(), batch(), 150);
  std::vector<float> slopes, sinks;
  for (int h = 0; h < shape().q_heads; ++h) {
    slopes.push_back(0.01f * static_cast<float>(h + 1));
    sinks.push_back(1.0f - static_cast<float>(h));
  }
  const std::vector<float> bias = gaussian(150 * 150, 9);
  std::vector<AttendIn> ways(8);
  ways[0].scale = 0.3f;
  ways[1].softcap = 2;
  ways[2].window = 20;
  ways[3].alibi = slopes;
  ways[4].sinks = sinks;
  ways[5] = {{}, 0.2f, 5, 37, bias.data(), 150, slopes, sinks, 0};
  ways[6].chunk = 32;  // the calls below cross chunks at 128, and 149 lies inside one
  ways[7].chunk = 49;
  ways[7].window = 15;
  ways[7].softcap = 5;
  ways[7].sinks = sinks;
  for (const AttendIn& how : ways) {
    KVCache cache = make();
    data.feed(cache, {100});
    expect_step_equals_reference(cache, data, {100, 149}, how);
    expect_step_equals_reference(cache, data, {149, 150}, how);
  }
}

TEST_P(Conformance, update_and_fetch_and_step_give_the_same_rows_and_store) {
  const Sequences data(shape(), batch(), 170);
  KVCache by_step = make(), by_fetch = make();
  data.feed(by_step, {130, 1, 39});
  int at = 0;
  for (int n : {130, 1, 39}) {
    const auto fetched = by_fetch.update_and_fetch(data.keys({at, at + n}), data.values({at, at + n}));
    at += n;
    ASSERT_EQ(fetched.rows, at);
    // The call's own rows come back exactly.
    for (int b = 0; b < batch(); ++b) {
      const auto k = rows_of(fetched.k, b, shape().kv_heads, at, shape().dim_k, at);
      const size_t own = static_cast<size_t>(n * shape().kv_heads * shape().dim_k);
      const size_t first = static_cast<size_t>((b * data.tokens + at - n) * shape().kv_heads * shape().dim_k);
      EXPECT_TRUE(
          std::equal(k.end() - static_cast<int64_t>(own), k.end(), data.k.begin() + static_cast<int64_t>(first)));
    }
  }
  for (Side side : kSides) EXPECT_EQ(by_fetch.decode(side), by_step.decode(side));
  // Scores may come from keys in place of queries.
  if (!by_step.method().def->chooses_rows) {
    EXPECT_EQ(by_fetch.state(), by_step.state());
  }
}

TEST_P(Conformance, any_chunking_gives_equal_bytes_and_equal_following_steps) {
  const Sequences data(shape(), batch(), 300);
  KVCache whole = make();
  if (!whole.method().def->capabilities.chunk_invariant) GTEST_SKIP() << "not promised";
  data.feed(whole, {290});
  const auto bytes = whole.state();
  const auto next = data.feed(whole, ones(10), 290);
  std::vector<std::vector<int>> ways = {chunks_of(290, 37), {33, 257}};
  if (!kSanitized) ways.insert(ways.end(), {ones(290), chunks_of(290, 7)});
  for (const std::vector<int>& chunks : ways) {
    KVCache cache = make();
    data.feed(cache, chunks);
    EXPECT_EQ(cache.state(), bytes);
    EXPECT_EQ(data.feed(cache, ones(10), 290), next);
  }
}

TEST_P(Conformance, used_bytes_is_the_sum_over_the_store_and_peek_changes_nothing) {
  const Sequences data(shape(), batch(), 161);
  KVCache cache = make();
  EXPECT_EQ(cache.used_bytes(), 0u);
  EXPECT_EQ(cache.peek().rows, 0);
  cache.append(data.keys({0, 160}), data.values({0, 160}));
  EXPECT_GT(cache.peek().staging_bytes, 0u);
  EXPECT_EQ(cache.peek().used_bytes, 0u) << "peek must not settle";
  const size_t used = cache.used_bytes();
  const CacheStats stats = cache.peek();
  EXPECT_EQ(stats.staging_bytes, 0u);
  EXPECT_EQ(used, stats.key.bytes() + stats.value.bytes() + stats.table_bytes);
  // Rows of a pool leave their places empty.
  const auto pooled = static_cast<int64_t>(stats.pool_position_bytes / sizeof(int32_t)) * shape().kv_heads;
  EXPECT_EQ(stats.key.coded_rows + stats.key.exact_rows, 160 * batch() * shape().kv_heads + pooled);
  EXPECT_GE(cache.nbytes(), used);
}

TEST_P(Conformance, trim_leaves_survivors_as_they_were_and_counts_as_if_the_rest_had_never_come) {
  LayerShape half = shape();
  half.input = DType::f16;  // so that exact rows hold what a coded row decodes to
  const Sequences data(half, batch(), 300);
  for (int removed : {1, 5, 40, 150, 300, 1000}) {
    if (kSanitized && removed != 5 && removed != 150) continue;
    KVCache cache(parse_method(GetParam().method), half);
    if (!cache.is_trimmable()) {
      EXPECT_EQ(cache.trim(1), 0);
      continue;
    }
    data.store(cache, {0, 200});
    data.store(cache, {200, 300});
    const int left = std::max(0, 300 - removed);
    const int n = half.kv_heads * batch();
    const auto before_k = cache.decode(Side::key), before_v = cache.decode(Side::value);
    EXPECT_EQ(cache.trim(removed), std::min(removed, 300));
    EXPECT_EQ(cache.offset(), left);
    KVCache fresh(parse_method(GetParam().method), half);
    if (left > 0) data.store(fresh, {0, left});
    if (fresh.method().def->capabilities.chunk_invariant) {
      EXPECT_EQ(cache.used_bytes(), fresh.used_bytes());
      EXPECT_EQ(cache.peek().key.coded_rows, fresh.peek().key.coded_rows);
      EXPECT_EQ(cache.peek().value.coded_rows, fresh.peek().value.coded_rows);
    }
    const auto k = cache.decode(Side::key), v = cache.decode(Side::value);
    for (int h = 0; h < n; ++h) {
      const auto row = [](const std::vector<float>& x, int head, int rows, int dim) {
        return x.begin() + int64_t{head} * rows * dim;
      };
      EXPECT_TRUE(
          std::equal(row(k, h, left, half.dim_k), row(k, h + 1, left, half.dim_k), row(before_k, h, 300, half.dim_k)));
      EXPECT_TRUE(
          std::equal(row(v, h, left, half.dim_v), row(v, h + 1, left, half.dim_v), row(before_v, h, 300, half.dim_v)));
    }
    if (left > 0 && left < 300) data.feed(cache, {300 - left}, left);
    EXPECT_EQ(cache.offset(), left > 0 ? 300 : 0);
  }
}

TEST_P(Conformance, state_round_trip_continues_bit_for_bit) {
  const Sequences data(shape(), batch(), 220);
  KVCache cache = make();
  for (int n : {0, 1, 127, 60}) {
    const int at = cache.offset();
    if (n > 0) data.feed(cache, {n}, at);
    KVCache copy = make();
    copy.set_state(cache.state());
    EXPECT_EQ(copy.state(), cache.state());
    EXPECT_EQ(copy.offset(), at + n);
    EXPECT_EQ(copy.used_bytes(), cache.used_bytes());
    if (n > 0) {
      KVCache twin = cache.copy();
      EXPECT_EQ(data.feed(copy, {1, 20}, at + n), data.feed(twin, {1, 20}, at + n));
    }
  }
}

TEST_P(Conformance, any_number_of_threads_gives_equal_bits) {
  const int n = batch() == 1 ? 2100 : 400;
  const Sequences data(shape(), batch(), n + 34);
  KVCache cache = make();
  data.store(cache, {0, n});
  for (Range r : {Range{n, n + 1}, Range{n + 1, n + 34}}) {
    cache.append(data.keys(r), data.values(r));
    const int64_t head = shape().dim_v, token = head * shape().q_heads;
    const AttendIn in = data.attend_in(r);
    std::vector<std::vector<float>> outs;
    for (int nth : {1, 2, 5}) {
      std::vector<float> out(static_cast<size_t>(batch() * r.size() * token), -1);
      std::vector<std::thread> threads;
      for (int ith = 0; ith < nth; ++ith) {
        threads.emplace_back([&, ith] { cache.attend(in, {out.data(), token * r.size(), token, head}, ith, nth); });
      }
      for (std::thread& thread : threads) thread.join();
      outs.push_back(std::move(out));
    }
    EXPECT_EQ(outs[0], outs[1]);
    EXPECT_EQ(outs[0], outs[2]);
    cache.commit();
  }
}

TEST_P(Conformance, ragged_batch_rows_equal_solo_caches) {
  const int rows = 3;
  const Sequences data(shape(), rows, 120);
  const std::vector<Range> calls[] = {
      {{0, 60}, {10, 60}, {59, 60}}, {{0, 1}, {0, 0}, {0, 1}}, {{0, 59}, {0, 30}, {5, 59}}};
  KVCache cache = make();
  std::vector<KVCache> solo;
  for (int b = 0; b < rows; ++b) solo.push_back(make());
  int at = 0;
  for (const auto& valid : calls) {
    const int tokens = std::max({valid[0].end, valid[1].end, valid[2].end});
    const Range r{at, at + tokens};
    // Padding may hold anything at all.
    Sequences padded = data;
    for (int b = 0; b < rows; ++b) {
      for (int t = 0; t < tokens; ++t) {
        if (t >= valid[static_cast<size_t>(b)].begin && t < valid[static_cast<size_t>(b)].end) continue;
        for (auto [x, width] : {std::pair{&padded.q, shape().q_heads * shape().dim_k},
                                {&padded.k, shape().kv_heads * shape().dim_k},
                                {&padded.v, shape().kv_heads * shape().dim_v}}) {
          std::fill_n(x->begin() + int64_t{(b * data.tokens + at + t)} * width, width, NAN);
        }
      }
    }
    const auto out = cache.step(padded.attend_in(r), padded.keys(r), padded.values(r), {Phase::automatic, valid});
    const size_t token = static_cast<size_t>(shape().q_heads * shape().dim_v);
    for (int b = 0; b < rows; ++b) {
      const Range v = valid[static_cast<size_t>(b)];
      const auto one = [&](Tensor t) {
        t.batch = 1;
        t.data = static_cast<const float*>(t.data) + b * t.stride_batch;
        return t;
      };
      AttendIn in;
      const Range own{at + v.begin, at + v.end};
      in.q = one(data.queries(own));
      const auto expected = solo[static_cast<size_t>(b)].step(in, one(data.keys(own)), one(data.values(own)));
      const size_t first = static_cast<size_t>(b * tokens + v.begin) * token;
      const std::vector<float> mine(out.begin() + static_cast<int64_t>(first),
                                    out.begin() + static_cast<int64_t>(first + expected.size()));
      EXPECT_LE(relative_l2(mine, expected), rounding(cache)) << "batch row " << b;
      EXPECT_EQ(cache.offset(b), solo[static_cast<size_t>(b)].offset());
      for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
        if (t >= static_cast<size_t>(v.begin) && t < static_cast<size_t>(v.end)) continue;
        for (size_t c = 0; c < token; ++c) ASSERT_EQ(out[(static_cast<size_t>(b * tokens) + t) * token + c], 0.0f);
      }
    }
    at += tokens;
  }
  for (int b = 0; b < rows; ++b) {
    const DenseRows mine = stored_rows(cache, b), alone = stored_rows(solo[static_cast<size_t>(b)], 0);
    EXPECT_EQ(mine.k, alone.k);
    EXPECT_EQ(mine.v, alone.v);
  }
  EXPECT_EQ(cache.make_mask(1).kind, Mask::Kind::array) << "ragged rows need a mask even for one query";
}

TEST_P(Conformance, bad_input_is_refused_and_leaves_the_cache_as_it_was) {
  Sequences data(shape(), batch(), 60);
  KVCache cache = make();
  data.feed(cache, {50});
  const auto before = cache.state();
  const Range r{50, 53};
  const AttendIn in = data.attend_in(r);
  const auto refused = [&](auto&& call) {
    EXPECT_THROW(call(), std::invalid_argument);
    EXPECT_EQ(cache.state(), before);
  };
  for (auto* x : {&data.k, &data.v, &data.q}) {
    for (float bad : {NAN, INFINITY, -INFINITY}) {
      const size_t place = x->size() / static_cast<size_t>(60 * batch()) * 51 + 1;  // token 51 of batch row 0
      const float good = std::exchange((*x)[place], bad);
      refused([&] { cache.step(in, data.keys(r), data.values(r)); });
      (*x)[place] = good;
    }
  }
  Tensor k = data.keys(r), v = data.values(r);
  const auto with = [](Tensor t, auto change) {
    change(t);
    return t;
  };
  refused([&] { cache.step(in, with(k, [](Tensor& t) { t.dim += 1; }), v); });
  refused([&] { cache.step(in, with(k, [](Tensor& t) { t.heads += 1; }), v); });
  refused([&] { cache.step(in, with(k, [](Tensor& t) { t.tokens -= 1; }), v); });
  refused([&] { cache.step(in, with(k, [](Tensor& t) { t.batch += 1; }), with(v, [](Tensor& t) { t.batch += 1; })); });
  refused([&] { cache.step(in, with(k, [](Tensor& t) { t.data = nullptr; }), v); });
  refused([&] { cache.step(data.attend_in({50, 52}), k, v); });
  AttendIn wrong = in;
  wrong.q.heads += 1;
  refused([&] { cache.step(wrong, k, v); });
  wrong = in;
  wrong.window = -1;
  refused([&] { cache.step(wrong, k, v); });
  wrong = in;
  wrong.chunk = -1;
  refused([&] { cache.step(wrong, k, v); });
  const std::vector<Range> outside(static_cast<size_t>(batch()), Range{0, 4});
  refused([&] { cache.step(in, k, v, {Phase::automatic, outside}); });
}

TEST_P(Conformance, fresh_reset_and_empty_caches_answer_everything) {
  const Sequences data(shape(), batch(), 40);
  KVCache cache = make();
  const auto expect_empty = [&] {
    EXPECT_EQ(cache.offset(), 0);
    EXPECT_EQ(cache.size(), 0);
    EXPECT_TRUE(cache.empty());
    EXPECT_EQ(cache.nbytes(), 0u);
    EXPECT_EQ(cache.used_bytes(), 0u);
    EXPECT_EQ(cache.make_mask(1).kind, Mask::Kind::none);
    EXPECT_EQ(cache.make_mask(7).kind, Mask::Kind::causal);
    EXPECT_EQ(cache.trim(3), 0);
    EXPECT_TRUE(cache.decode(Side::key).empty());
    KVCache copy = make();
    copy.set_state(cache.state());
    EXPECT_TRUE(copy.empty());
  };
  expect_empty();
  EXPECT_TRUE(data.step(cache, {0, 0}).empty());  // a call without tokens is a no-op
  expect_empty();
  data.feed(cache, {39});
  EXPECT_TRUE(data.step(cache, {39, 39}).empty());
  EXPECT_EQ(cache.offset(), 39);
  cache.reset();
  expect_empty();
  data.feed(cache, {1, 2});
  EXPECT_EQ(cache.offset(), 3);
}

TEST_P(Conformance, copies_and_selected_rows_go_their_own_way) {
  const Sequences data(shape(), batch(), 200), other(shape(), batch(), 200, 77);
  KVCache cache = make(), alone = make();
  data.feed(cache, {150});
  data.feed(alone, {150});
  KVCache copy = cache.copy();
  EXPECT_EQ(copy.state(), cache.state());
  other.feed(copy, {30, 1}, 150);
  EXPECT_EQ(cache.state(), alone.state()) << "a copy's rows reached the original";
  EXPECT_EQ(data.feed(cache, {20, 1}, 150), data.feed(alone, {20, 1}, 150));

  const std::vector<int> rows{batch() - 1, 0, 0};
  cache.select(rows);
  ASSERT_EQ(cache.batch(), 3);
  const DenseRows first = stored_rows(alone, 0);
  EXPECT_EQ(stored_rows(cache, 1).k, first.k);
  EXPECT_EQ(stored_rows(cache, 2).k, first.k);
  const Sequences three(shape(), 3, 50);
  three.feed(cache, {49, 1});
  EXPECT_EQ(stored_rows(alone, 0).v, first.v);
  EXPECT_NE(stored_rows(cache, 1).k, stored_rows(cache, 2).k) << "rows that were shared must part when written";
  EXPECT_THROW(cache.select(std::vector<int>{3}), std::out_of_range);
}

TEST_P(Conformance, damaged_states_are_refused_and_change_nothing) {
  const Sequences data(shape(), batch(), 40);
  KVCache cache = make();
  data.feed(cache, {40});
  const auto good = cache.state();
  KVCache target = make();
  data.feed(target, {5});
  const auto before = target.state();
  for (size_t i = 0; i < good.size(); i += 1 + good.size() / 61) {
    auto bad = good;
    bad[i] ^= std::byte{0x10};
    EXPECT_THROW(target.set_state(bad), FormatError) << "byte " << i;
    EXPECT_THROW(target.set_state(std::span(good).first(i)), FormatError) << "cut at " << i;
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_THROW(target.set_state(longer), FormatError);
  EXPECT_EQ(target.state(), before);
  LayerShape shape_of_another = shape();
  shape_of_another.kv_heads *= 2;
  shape_of_another.q_heads *= 2;
  KVCache another(parse_method(GetParam().method), shape_of_another);
  EXPECT_THROW(another.set_state(good), FormatError);
}

}  // namespace
}  // namespace veloxquant::test
