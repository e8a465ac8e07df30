// What holds for all methods that choose rows, alone and with the bits of another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include <fmt/format.h>

#include "support/kept_rows.h"
#include "support/sanitizer.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

using testing::HasSubstr;

const char* const kSmall[] = {"h2o(budget=40,grace=8)",
                              "tova(budget=40)",
                              "tova(budget=40,shared_heads=false)",
                              "knorm(budget=40,recent=6)",
                              "snapkv(budget=40,window=8)",
                              "snapkv(budget=40,window=8,pool=avg,keep_window=false)",
                              "streaming_llm(window=36)",
                              "streaming_llm(window=20,n_sink=0)"};

TEST(Eviction, a_step_sees_what_is_kept_and_its_own_rows) {
  for (const char* method : kSmall) {
    SCOPED_TRACE(method);
    const Sequences data(kShape, 2, 260);
    KVCache cache = make(method);
    int at = 0;
    for (int n : {1, 3, 30, 1, 1, 64, 1, 1, 1, 20, 90, 1, 1, 1}) {
      expect_step_sees_what_is_kept(cache, data, {at, at + n});
      at += n;
      EXPECT_EQ(cache.offset(), at);
      EXPECT_FALSE(cache.is_trimmable());
      EXPECT_EQ(cache.trim(1), 0);
    }
  }
}

TEST(Eviction, a_budget_that_holds_everything_changes_no_bit) {
  const Sequences data(kShape, 2, 150);
  for (const char* method : {"h2o", "tova", "tova(shared_heads=false)", "knorm", "snapkv", "streaming_llm"}) {
    SCOPED_TRACE(method);
    KVCache cache = make(method), exact = make("exact");
    const std::vector<int> chunks = {40, 1, 1, 70, 1, 37};
    const std::vector<float> out = data.feed(cache, chunks), expected = data.feed(exact, chunks);
    if (std::string(method) == "streaming_llm") {  // its sinks stand apart: other sums
      EXPECT_LT(relative_l2(out, expected), 1e-6);
    } else {
      EXPECT_EQ(out, expected);
    }
    EXPECT_EQ(cache.decode(Side::key), exact.decode(Side::key));
    EXPECT_EQ(cache.positions(1, 1), iota(0, 150));
  }
}

TEST(Eviction, the_first_call_is_full_causal_attention_however_long) {
  const Sequences data(kShape, 1, 200);
  for (const char* method : kSmall) {
    KVCache cache = make(method), exact = make("exact");
    EXPECT_EQ(data.feed(cache, {200}), data.feed(exact, {200})) << method;
    EXPECT_LE(cache.size(), 40) << method;
  }
}

TEST(Eviction, any_number_of_threads_gives_equal_bits_and_keeps_equal_rows) {
  const LayerShape shape = kSanitized ? LayerShape{.kv_heads = 2, .q_heads = 2, .dim_k = 8, .dim_v = 8} : kShape;
  const int batch_rows = sized(2, 1);
  const Sequences data(shape, batch_rows, 5000);
  // More rows than one span: decode steps are split over them.
  const int first = sized(2400, 2060), budget = sized(4500, 2090);
  for (const std::string& method : {fmt::format("h2o(budget={})", budget), fmt::format("tova(budget={})", budget),
                                    std::string("snapkv(budget=300)")}) {
    SCOPED_TRACE(method);
    KVCache one = make(method, shape), three = make(method, shape);
    const size_t row = static_cast<size_t>(shape.q_heads * shape.dim_v);
    int at = 0;
    for (int n : {first, sized(2300, 40), 1, 1, 90, 1}) {
      const Range r{at, at + n};
      one.append(data.keys(r), data.values(r));
      three.append(data.keys(r), data.values(r));
      std::vector<float> a(static_cast<size_t>(batch_rows * n) * row), b = a;
      const auto token = static_cast<int64_t>(row);
      one.attend(data.attend_in(r), {a.data(), token * n, token, shape.dim_v}, 0, 1);
      const AttendIn in = data.attend_in(r);
      std::vector<std::thread> threads;
      for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&, i] { three.attend(in, {b.data(), token * n, token, shape.dim_v}, i, 3); });
      }
      for (std::thread& t : threads) t.join();
      EXPECT_EQ(a, b);
      for (int batch = 0; batch < batch_rows; ++batch) {
        for (int head = 0; head < shape.kv_heads; ++head) {
          EXPECT_EQ(one.positions(batch, head), three.positions(batch, head));
          EXPECT_EQ(one.scores(batch, head), three.scores(batch, head));
        }
      }
      at += n;
    }
    EXPECT_GT(one.peek().calls.true_query, 0);
    EXPECT_EQ(one.peek().calls.key_proxy, 0);
  }
}

TEST(Eviction, a_state_goes_on_as_if_nothing_had_happened) {
  const Sequences data(kShape, 2, 300);
  for (const char* method :
       {"h2o(budget=40,grace=8)", "tova(budget=40)", "snapkv(budget=40,window=8)", "streaming_llm(window=36)",
        "knorm(budget=40)", "snapkv(budget=60,window=8)+kivi(group=16,residual=16)", "h2o(budget=40)+turboquant_rvq",
        "streaming_llm(window=50)+kivi(group=16,residual=16)", "kivi_sink(group=16,residual=16)"}) {
    SCOPED_TRACE(method);
    KVCache cache = make(method), other = make(method);
    data.feed(cache, {100, 1, 1, 1, 50, 1});
    const std::vector<std::byte> state = cache.state();
    other.set_state(state);
    EXPECT_EQ(other.state(), state);
    KVCache copy = cache.copy();
    const std::vector<int> rest = {1, 1, 60, 1, 1, 30};
    const std::vector<float> expected = data.feed(cache, rest, 154);
    EXPECT_EQ(data.feed(other, rest, 154), expected);
    EXPECT_EQ(data.feed(copy, rest, 154), expected) << "a copy";
    EXPECT_EQ(other.state(), cache.state());
    EXPECT_EQ(copy.state(), cache.state());
  }
}

TEST(Eviction, batch_rows_are_independent_and_padding_is_never_kept) {
  const Sequences data(kShape, 2, 120);
  for (const char* method : kSmall) {
    SCOPED_TRACE(method);
    KVCache both = make(method), alone = make(method);
    const Range valid[] = {{5, 60}, {0, 60}};
    const auto out = both.step(data.attend_in({0, 60}), data.keys({0, 60}), data.values({0, 60}),
                               {.phase = Phase::automatic, .valid = valid});
    (void)out;
    const auto second = [&](const std::vector<float>& x, int heads, int dim, Range r) {
      Tensor t = data.view(x, heads, dim, r);
      t.batch = 1;
      t.data = static_cast<const float*>(t.data) + t.stride_batch;
      return t;
    };
    AttendIn in;
    in.q = second(data.q, kShape.q_heads, kShape.dim_k, {0, 60});
    alone.step(in, second(data.k, kShape.kv_heads, kShape.dim_k, {0, 60}),
               second(data.v, kShape.kv_heads, kShape.dim_v, {0, 60}));
    EXPECT_EQ(both.offset(0), 55);
    EXPECT_EQ(both.offset(1), 60);
    for (int head = 0; head < kShape.kv_heads; ++head) EXPECT_EQ(both.positions(1, head), alone.positions(0, head));
    EXPECT_LE(both.positions(0, 0).back(), 54);
  }
}

TEST(Eviction, masks_and_fetched_rows_follow_the_positions) {
  const Sequences data(kShape, 1, 100);
  KVCache cache = make("h2o(budget=40,grace=8)");
  EXPECT_EQ(cache.make_mask(5).kind, Mask::Kind::causal);
  data.feed(cache, {80});
  EXPECT_EQ(cache.make_mask(1).kind, Mask::Kind::none);
  const Mask mask = cache.make_mask(3, false, 30);
  ASSERT_EQ(mask.kind, Mask::Kind::array);
  EXPECT_EQ(mask.heads, 2);
  EXPECT_EQ(mask.keys, 43);
  for (int head = 0; head < 2; ++head) {
    const std::vector<int32_t> kept = cache.positions(0, head);
    for (int i = 0; i < 3; ++i) {
      for (int c = 0; c < 43; ++c) {
        const int p = c < 40 ? kept[static_cast<size_t>(c)] : 80 + c - 40;
        EXPECT_EQ(mask.allowed[static_cast<size_t>((head * 3 + i) * 43 + c)], p <= 80 + i && p > 80 + i - 30);
      }
    }
  }
  const KVCache::Fetched rows = cache.update_and_fetch(data.keys({80, 85}), data.values({80, 85}));
  ASSERT_EQ(rows.rows, 45);
  const KVCache::Fetched& fetched = rows;
  KVCache fresh = make("h2o(budget=40,grace=8)");
  data.feed(fresh, {80});
  for (int head = 0; head < 2; ++head) {
    std::vector<int32_t> kept = fresh.positions(0, head);
    for (int t = 80; t < 85; ++t) kept.push_back(t);
    for (int r = 0; r < 45; ++r) {
      for (int c = 0; c < kShape.dim_k; ++c) {
        EXPECT_EQ(fetched.k[static_cast<size_t>((head * 45 + r) * kShape.dim_k + c)],
                  data.k[static_cast<size_t>((kept[static_cast<size_t>(r)] * 2 + head) * kShape.dim_k + c)]);
      }
    }
  }
}

TEST(Eviction, bytes_equal_the_formula) {
  const int heads = sized(8, 2), dim = sized(128, 16);
  const LayerShape shape{.kv_heads = heads, .q_heads = heads, .dim_k = dim, .dim_v = dim};
  const Sequences data(shape, 1, sized(1500, 700));
  const size_t rows = static_cast<size_t>(heads) * 512, row = 4 * static_cast<size_t>(dim);
  struct Case {
    const char* method;
    size_t bytes;
  };
  const Case cases[] = {
      {"h2o", rows * (row + 8)},
      {"snapkv", rows * (row + 8)},
      {"knorm", rows * (row + 8)},
      {"tova", rows * row + 512 * 4},
      {"tova(shared_heads=false)", rows * (row + 4)},
      {"streaming_llm", static_cast<size_t>(heads) * 516 * row},
  };
  for (const Case& c : cases) {
    KVCache cache = make(c.method, shape);
    data.feed(cache, {600, data.tokens - 600});
    EXPECT_EQ(cache.used_bytes(), c.bytes) << c.method;
    const size_t block = 64 * row * static_cast<size_t>(heads);
    EXPECT_LE(cache.nbytes(), cache.used_bytes() * 103 / 100 + block) << c.method;
    EXPECT_GE(cache.nbytes(), cache.used_bytes()) << c.method;
  }
  if (!kSanitized) {
    EXPECT_EQ(cases[0].bytes, 2129920u);
    EXPECT_EQ(cases[3].bytes, 2099200u);
    EXPECT_EQ(cases[4].bytes, 2113536u);
    EXPECT_EQ(cases[5].bytes, 2113536u);
  }
}

// --- entry points --------------------------------------------------------------------------------

TEST(QuerySources, observe_and_late_attends_and_missing_queries) {
  const Sequences data(kShape, 1, 120);
  KVCache step = make("h2o(budget=40)"), external = make("h2o(budget=40)"),
          strict = make("h2o(budget=40,query_source=true)");
  for (const Range r : {Range{0, 80}, Range{80, 81}, Range{81, 119}}) {
    data.step(step, r);
    (void)external.update_and_fetch(data.keys(r), data.values(r), data.attend_in(r));
    data.step(strict, r);
  }
  EXPECT_EQ(step.state().size(), external.state().size());
  for (int head = 0; head < 2; ++head) {
    EXPECT_EQ(step.positions(0, head), external.positions(0, head));
    EXPECT_EQ(step.scores(0, head), external.scores(0, head));
  }
  // Two attends of one call see the same rows; one after the commit sees the survivors.
  KVCache late = make("h2o(budget=40)");
  late.append(data.keys({0, 80}), data.values({0, 80}));
  EXPECT_EQ(late.size(), 40) << "settled by its keys";
  (void)late.attend(data.attend_in({0, 80}));
  EXPECT_EQ(late.peek().calls.key_proxy, 1);
  EXPECT_EQ(late.peek().calls.late_attend, 1);
  strict.append(data.keys({119, 120}), data.values({119, 120}));
  EXPECT_THROW(strict.size(), ValueError);
  EXPECT_THROW(step.observe(data.attend_in({0, 5})), ShapeError);
}

// --- compositions --------------------------------------------------------------------------------

TEST(Composition, rows_of_one_method_in_the_bits_of_another) {
  const Sequences data(kShape, 1, 300);
  for (const std::string bits : {"kivi(bits=8,group=16,residual=16)", "turboquant_rvq(bits=4,value_codec=int8)"}) {
    KVCache plain = make("snapkv(budget=80,window=16)"), coded = make("snapkv(budget=80,window=16)+" + bits);
    data.feed(plain, {200});
    data.feed(coded, {200});
    EXPECT_EQ(plain.positions(0, 0), coded.positions(0, 0)) << "rows are chosen before they are coded";
    EXPECT_LT(coded.used_bytes(), plain.used_bytes());
    // Turn after turn, with sealed rows that leave holes.
    int at = 200;
    for (int n : {1, 1, 1, 40, 1, 1, 40, 1}) {
      expect_step_sees_what_is_kept(coded, data, {at, at + n}, {}, 0.06);
      at += n;
    }
    EXPECT_EQ(coded.size(), 81);
  }
  KVCache sums = make("h2o(budget=40)+turboquant_rvq(bits=4,value_codec=int8)");
  int at = 0;
  for (int n : {100, 1, 1, 1, 60, 1, 1}) {
    expect_step_sees_what_is_kept(sums, data, {at, at + n}, {}, 0.06);
    at += n;
    EXPECT_EQ(sums.size(), 40);
  }
}

TEST(Composition, what_cannot_work_is_refused_with_both_names) {
  const auto problem = [](const std::string& text) -> std::string {
    try {
      make(text);
      return "";
    } catch (const QuantizerConfigError& error) {
      return error.what();
    }
  };
  for (const std::string rows : {"h2o", "tova", "knorm"}) {
    EXPECT_THAT(problem(rows + "+kivi"), testing::AllOf(HasSubstr(rows), HasSubstr("affine2"))) << rows;
  }
  EXPECT_THAT(problem("kivi+snapkv"), testing::AllOf(HasSubstr("kivi"), HasSubstr("snapkv"), HasSubstr("choose")));
  EXPECT_THAT(problem("h2o+snapkv"), testing::AllOf(HasSubstr("h2o"), HasSubstr("snapkv")));
  EXPECT_THAT(problem("kivi+turboquant_rvq"), HasSubstr("choose"));
  EXPECT_THAT(problem("streaming_llm+kivi_sink"), HasSubstr("pool"));
  EXPECT_THAT(problem("snapkv(seed=1)+kivi(seed=2)"), HasSubstr("twice"));
  EXPECT_THAT(problem("h2o(budget=20,n_sink=4,grace=16)"), HasSubstr("h2o_budget"));
  EXPECT_THAT(problem("tova(budget=4)"), HasSubstr("tova_budget"));
  EXPECT_THAT(problem("knorm(budget=8,recent=4)"), HasSubstr("knorm_budget"));
  EXPECT_THAT(problem("snapkv(kernel=4)"), HasSubstr("odd"));
  EXPECT_EQ(problem("h2o(budget=0,n_sink=0,grace=0)"), "");
  EXPECT_EQ(problem("snapkv(budget=4)+kivi(bits=4)"), "");
}

TEST(Composition, a_budget_of_nothing_keeps_nothing) {
  const Sequences data(kShape, 1, 20);
  for (const char* method : {"h2o(budget=0,n_sink=0,grace=0)", "tova(budget=0,n_sink=0)"}) {
    KVCache cache = make(method);
    expect_step_sees_what_is_kept(cache, data, {0, 10});
    EXPECT_EQ(cache.size(), 0);
    expect_step_sees_what_is_kept(cache, data, {10, 11});
    EXPECT_EQ(cache.size(), 0);
    EXPECT_EQ(cache.offset(), 11);
  }
}

}  // namespace
}  // namespace veloxquant::test
