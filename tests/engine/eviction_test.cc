// Methods that choose rows: what they keep, and that attention sees just that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "support/sanitizer.h"
#include "support/tensors.h"
#include "veloxquant/cache.h"
#include "veloxquant/errors.h"
#include "veloxquant/rope.h"

namespace veloxquant::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr LayerShape kShape{.kv_heads = 2, .q_heads = 4, .dim_k = 32, .dim_v = 24};

KVCache make(const std::string& method, const LayerShape& shape = kShape) {
  return KVCache(parse_method(method), shape);
}

std::vector<int32_t> iota(int begin, int end) {
  std::vector<int32_t> x(static_cast<size_t>(end - begin));
  std::iota(x.begin(), x.end(), begin);
  return x;
}

double dot(const Sequences& d, int b, int token, int q_head, int row) {
  const LayerShape& s = d.shape;
  const int head = q_head / (s.q_heads / s.kv_heads);
  double sum = 0;
  for (int c = 0; c < s.dim_k; ++c) {
    sum += double{d.q[static_cast<size_t>(((b * d.tokens + token) * s.q_heads + q_head) * s.dim_k + c)]} *
           double{d.k[static_cast<size_t>(((b * d.tokens + row) * s.kv_heads + head) * s.dim_k + c)]};
  }
  return sum / std::sqrt(double(s.dim_k));
}

/// Softmax of one query over rows at `positions`, fp64.
std::vector<double> weights(const Sequences& d, int b, int token, int q_head, const std::vector<int32_t>& positions) {
  std::vector<double> w;
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int p : positions) {
    w.push_back(p <= token ? dot(d, b, token, q_head, p) : -std::numeric_limits<double>::infinity());
    max = std::max(max, w.back());
  }
  for (double& x : w) sum += x = std::exp(x - max);
  for (double& x : w) x /= sum;
  return w;
}

/// Outputs of one step over tokens [r) against attention over what is stored and the call's own rows.
void expect_step_sees_what_is_kept(KVCache& cache, const Sequences& d, Range r, const CallInfo& info = {},
                                   double tolerance = 1e-5) {
  const LayerShape& s = d.shape;
  std::vector<std::vector<int32_t>> kept;
  for (int b = 0; b < d.batch; ++b) {
    for (int h = 0; h < s.kv_heads; ++h) {
      kept.push_back(cache.batch() > 0 ? cache.positions(b, h) : std::vector<int32_t>());
      for (int t = r.begin; t < r.end; ++t) kept.back().push_back(t);
    }
  }
  const std::vector<float> got = cache.step(d.attend_in(r), d.keys(r), d.values(r), info);
  std::vector<float> expected;
  for (int b = 0; b < d.batch; ++b) {
    for (int t = r.begin; t < r.end; ++t) {
      for (int q = 0; q < s.q_heads; ++q) {
        const int head = q / (s.q_heads / s.kv_heads);
        const auto& positions = kept[static_cast<size_t>(b * s.kv_heads + head)];
        const std::vector<double> w = weights(d, b, t, q, positions);
        for (int c = 0; c < s.dim_v; ++c) {
          double sum = 0;
          for (size_t i = 0; i < w.size(); ++i) {
            if (w[i] == 0) continue;
            const auto row = static_cast<size_t>((b * d.tokens + positions[i]) * s.kv_heads + head);
            sum += w[i] * double{d.v[row * static_cast<size_t>(s.dim_v) + static_cast<size_t>(c)]};
          }
          expected.push_back(static_cast<float>(sum));
        }
      }
    }
  }
  EXPECT_LT(relative_l2(got, expected), tolerance) << "tokens " << r.begin << ".." << r.end;
}

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

// --- H2O -----------------------------------------------------------------------------------------

TEST(H2O, scores_sum_to_what_the_decay_says) {
  const int n = 400;
  const Sequences data(kShape, 1, n);
  for (double decay : {0.98, 1.0}) {
    for (const std::vector<int>& chunks : {ones(n), chunks_of(n, 64), {n}}) {
      KVCache cache = make(fmt::format("h2o(budget=512,decay={})", decay));
      data.feed(cache, chunks);
      const double expected = decay == 1 ? n : (1 - std::pow(decay, n)) / (1 - decay);
      for (int head = 0; head < kShape.kv_heads; ++head) {
        const std::vector<float> scores = cache.scores(0, head);
        EXPECT_EQ(scores.size(), static_cast<size_t>(n));
        EXPECT_NEAR(std::accumulate(scores.begin(), scores.end(), 0.0) / expected, 1, 1e-4);
        EXPECT_GE(*std::min_element(scores.begin(), scores.end()), 0);
      }
    }
  }
}

TEST(H2O, the_victim_is_the_smallest_decayed_sum) {
  const int budget = 24, grace = 4, sinks = 2;
  const Sequences data(kShape, 1, 200);
  KVCache cache = make("h2o(budget=24,grace=4,n_sink=2)");
  std::vector<std::map<int, double>> score(2);
  int checked = 0;
  for (int t = 0; t < data.tokens; ++t) {
    data.step(cache, {t, t + 1});
    for (int head = 0; head < 2; ++head) {
      auto& s = score[static_cast<size_t>(head)];
      s[t] = 0;
      std::vector<int32_t> rows;
      for (auto& [p, x] : s) rows.push_back(p);
      std::vector<double> mean(rows.size(), 0.0);
      for (int g = 0; g < 2; ++g) {
        const std::vector<double> w = weights(data, 0, t, head * 2 + g, rows);
        for (size_t i = 0; i < w.size(); ++i) mean[i] += w[i] / 2;
      }
      for (size_t i = 0; i < rows.size(); ++i) s[rows[i]] = 0.98 * s[rows[i]] + mean[i];
      if (static_cast<int>(s.size()) <= budget) continue;
      double best = 1e30, next = 1e30;
      int victim = -1;
      for (auto& [p, x] : s) {
        if (p < sinks || p >= t + 1 - grace) continue;
        if (x < best) {
          next = best;
          best = x;
          victim = p;
        } else {
          next = std::min(next, x);
        }
      }
      const std::vector<int32_t> kept = cache.positions(0, head);
      if (next - best > 1e-5) {
        ++checked;
        EXPECT_EQ(std::count(kept.begin(), kept.end(), victim), 0) << "token " << t;
      }
      for (auto it = s.begin(); it != s.end();) {
        it = std::count(kept.begin(), kept.end(), it->first) ? std::next(it) : s.erase(it);
      }
    }
  }
  EXPECT_GT(checked, 300);
}

TEST(H2O, sinks_and_the_newest_stay) {
  const Sequences data(kShape, 1, 6 * 40);
  KVCache cache = make("h2o(budget=40)");
  for (int t = 0; t < data.tokens; ++t) {
    data.step(cache, {t, t + 1});
    const std::vector<int32_t> kept = cache.positions(0, 1);
    EXPECT_LE(kept.size(), 40u);
    EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
    const std::set<int32_t> set(kept.begin(), kept.end());
    for (int p : iota(0, std::min(4, t + 1))) EXPECT_TRUE(set.contains(p));
    for (int p : iota(std::max(0, t - 15), t + 1)) EXPECT_TRUE(set.contains(p));
  }
}

// Keys for queries leave out their own row: a new row never gains anything before it is judged.
TEST(H2O, without_grace_the_key_proxy_freezes) {
  const Sequences data(kShape, 1, 90);
  for (const char* decay : {"0.5", "0.98", "1"}) {
    KVCache frozen = make(fmt::format("h2o(budget=14,n_sink=0,grace=0,decay={})", decay));
    KVCache moving = make(fmt::format("h2o(budget=40,decay={})", decay));
    for (int t = 0; t < data.tokens; ++t) {
      (void)frozen.update_and_fetch(data.keys({t, t + 1}), data.values({t, t + 1}));
      (void)moving.update_and_fetch(data.keys({t, t + 1}), data.values({t, t + 1}));
      EXPECT_EQ(frozen.positions(0, 0), iota(0, std::min(14, t + 1)));
      const std::vector<int32_t> kept = moving.positions(0, 0);
      const auto recent = static_cast<std::ptrdiff_t>(std::min(16, t + 1));
      EXPECT_EQ(std::vector<int32_t>(kept.end() - recent, kept.end()), iota(std::max(0, t - 15), t + 1));
    }
    EXPECT_EQ(moving.peek().calls.key_proxy, data.tokens);
    EXPECT_EQ(moving.peek().calls.true_query, 0);
  }
}

TEST(H2O, a_planted_heavy_hitter_survives) {
  const LayerShape shape{.kv_heads = 1, .q_heads = 1, .dim_k = 16, .dim_v = 16};
  // The queries give one key 0.3 and the others alike: their logits are 0, its logit is log(0.3 / 0.7 * (n - 1)).
  const int budget = 30, steps = 700, heavy = 10, stops = 60;
  const auto run = [&](bool for_ever, double decay) {
    KVCache cache = make(fmt::format("h2o(budget={},grace=8,n_sink=0,decay={})", budget, decay), shape);
    int lived = -1;
    for (int t = 0; t < steps; ++t) {
      std::vector<float> q(16, 0.0f), k(16, 0.0f), v(16, 0.0f);
      if (t == heavy) k[0] = 1;
      const int n = std::min(t + 1, budget + 1);
      q[0] = -100;  // no weight at all
      if (for_ever || t < heavy + stops) q[0] = 4 * std::log(0.3f / 0.7f * static_cast<float>(std::max(1, n - 1)));
      AttendIn in;
      in.q = Tensor::bshd(q.data(), DType::f32, 1, 1, 1, 16);
      cache.step(in, Tensor::bshd(k.data(), DType::f32, 1, 1, 1, 16), Tensor::bshd(v.data(), DType::f32, 1, 1, 1, 16));
      const auto kept = cache.positions(0, 0);
      if (std::count(kept.begin(), kept.end(), heavy)) lived = t;
    }
    return lived;
  };
  EXPECT_EQ(run(true, 0.98), steps - 1);
  EXPECT_LT(run(false, 0.98), heavy + stops + 600);
  EXPECT_EQ(run(false, 1.0), steps - 1);
}

// --- TOVA ----------------------------------------------------------------------------------------

TEST(Tova, the_victim_is_the_least_attended_row_of_the_layer) {
  const int budget = 20;
  const Sequences data(kShape, 1, 220);
  KVCache cache = make("tova(budget=20)");
  std::vector<int32_t> rows;
  int checked = 0;
  for (int t = 0; t < data.tokens; ++t) {
    data.step(cache, {t, t + 1});
    rows.push_back(t);
    if (static_cast<int>(rows.size()) > budget) {
      std::vector<double> mean(rows.size(), 0.0);
      for (int q = 0; q < kShape.q_heads; ++q) {
        const std::vector<double> w = weights(data, 0, t, q, rows);
        for (size_t i = 0; i < w.size(); ++i) mean[i] += w[i] / kShape.q_heads;
      }
      size_t victim = 4;
      for (size_t i = 4; i < rows.size(); ++i) {
        if (mean[i] < mean[victim]) victim = i;
      }
      std::vector<double> sorted(mean.begin() + 4, mean.end());
      std::sort(sorted.begin(), sorted.end());
      if (sorted[1] - sorted[0] > 1e-6) {
        ++checked;
        rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(victim));
      } else {
        rows = cache.positions(0, 0);
      }
    }
    EXPECT_EQ(cache.positions(0, 0), rows);
    EXPECT_EQ(cache.positions(0, 1), rows) << "one set for all heads";
    EXPECT_TRUE(cache.scores(0, 0).empty());
  }
  EXPECT_GT(checked, 150);
}

TEST(Tova, equal_weights_keep_the_newer_row) {
  const LayerShape shape{.kv_heads = 1, .q_heads = 1, .dim_k = 3, .dim_v = 1};
  const float keys[] = {1, 0, 0, 0, 1, 0}, values[] = {0, 0};
  for (const float third : {0.1f, -0.1f}) {
    KVCache cache = make("tova(budget=2,n_sink=0)", shape);
    AttendIn in;
    in.q = Tensor::bshd(keys, DType::f32, 1, 2, 1, 3);
    cache.step(in, Tensor::bshd(keys, DType::f32, 1, 2, 1, 3), Tensor::bshd(values, DType::f32, 1, 2, 1, 1));
    const float tied[] = {0, 0, third}, opposed[] = {third, 0, 0}, q[] = {4, 0, 0};
    in.q = Tensor::bshd(q, DType::f32, 1, 1, 1, 3);
    cache.step(in, Tensor::bshd(third > 0 ? tied : opposed, DType::f32, 1, 1, 1, 3),
               Tensor::bshd(values, DType::f32, 1, 1, 1, 1));
    EXPECT_EQ(cache.positions(0, 0), third > 0 ? (std::vector<int32_t>{0, 2}) : (std::vector<int32_t>{0, 1}));
  }
}

TEST(Tova, one_head_makes_no_difference_and_h2o_without_memory_is_tova) {
  const LayerShape shape{.kv_heads = 1, .q_heads = 2, .dim_k = 32, .dim_v = 32};
  const Sequences data(shape, 1, 150);
  KVCache shared = make("tova(budget=20)", shape), single = make("tova(budget=20,shared_heads=false)", shape),
          memoryless = make("h2o(budget=20,grace=0,decay=1e-30)", shape);
  for (int t = 0; t < data.tokens; ++t) {
    data.step(shared, {t, t + 1});
    data.step(single, {t, t + 1});
    data.step(memoryless, {t, t + 1});
    ASSERT_EQ(shared.positions(0, 0), single.positions(0, 0));
    ASSERT_EQ(memoryless.positions(0, 0), single.positions(0, 0));
  }
}

// --- SnapKV --------------------------------------------------------------------------------------

TEST(SnapKV, counts_and_kept_rows_for_any_chunks) {
  const Sequences data(kShape, 1, 300);
  for (const std::vector<int>& chunks : {std::vector<int>{250}, {100, 150}, {2, 3, 60, 100, 85}, {64, 64, 64, 58}}) {
    KVCache cache = make("snapkv(budget=60)");
    int at = 0;
    for (int n : chunks) {
      data.step(cache, {at, at + n});
      at += n;
      EXPECT_EQ(cache.size(), std::min(60, at));
    }
    std::vector<int32_t> kept = cache.positions(0, 0);
    EXPECT_EQ(std::vector<int32_t>(kept.begin(), kept.begin() + 4), iota(0, 4));
    EXPECT_EQ(std::vector<int32_t>(kept.end() - 32, kept.end()), iota(218, 250));
    for (int t = 250; t < 260; ++t) data.step(cache, {t, t + 1});
    EXPECT_EQ(cache.size(), 70);
    EXPECT_EQ(cache.offset(), 260);
    data.step(cache, {260, 280});
    EXPECT_EQ(cache.size(), 60) << "a new turn selects from everything";
  }
  KVCache tiny = make("snapkv(budget=4)"), small = make("snapkv(budget=20)");
  data.feed(tiny, {200});
  data.feed(small, {200});
  EXPECT_EQ(tiny.positions(0, 0), iota(0, 4));
  std::vector<int32_t> expected = iota(0, 4);
  for (int p : iota(184, 200)) expected.push_back(p);
  EXPECT_EQ(small.positions(0, 0), expected);
}

TEST(SnapKV, hints_make_one_selection_of_a_prompt_in_chunks) {
  const Sequences data(kShape, 2, 400);
  KVCache whole = make("snapkv(budget=60)"), cut = make("snapkv(budget=60)");
  data.feed(whole, {400});
  int at = 0;
  for (int n : {7, 150, 93, 110, 40}) {
    const Range r{at, at + n};
    const Phase phase = r.end == 400 ? Phase::prefill_last : Phase::prefill_more;
    expect_step_sees_what_is_kept(cut, data, r, {.phase = phase, .valid = {}});
    EXPECT_EQ(cut.size(), r.end == 400 ? 60 : r.end);
    at = r.end;
  }
  for (int b = 0; b < 2; ++b) {
    for (int head = 0; head < 2; ++head) EXPECT_EQ(cut.positions(b, head), whole.positions(b, head));
  }
}

TEST(SnapKV, a_needle_and_its_neighbours_survive_in_their_head) {
  const int n = sized(4096, 1200), needle = 1000;
  const LayerShape shape{.kv_heads = 2, .q_heads = 2, .dim_k = 64, .dim_v = 8};
  Sequences data(shape, 1, n);
  for (int t = 0; t < n; ++t) {
    for (int h = 0; h < 2; ++h) {
      float* k = data.k.data() + (t * 2 + h) * 64;
      float* q = data.q.data() + (t * 2 + h) * 64;
      const double norm = std::sqrt(std::inner_product(k, k + 64, k, 0.0));
      for (int c = 0; c < 64; ++c) k[c] = static_cast<float>(k[c] / norm), q[c] = 0;
      q[0] = 64;  // scale 1/8: logit 8 for a key along channel 0
      k[0] = 0;
      if (t == needle && h == 0) {
        for (int c = 0; c < 64; ++c) k[c] = c == 0;
      }
    }
  }
  for (int kernel : {5, 1}) {
    KVCache cache = make(fmt::format("snapkv(budget=128,kernel={})", kernel), shape);
    data.feed(cache, {n});
    const auto keeps = [&](int head, int p) {
      const std::vector<int32_t> kept = cache.positions(0, head);
      return std::binary_search(kept.begin(), kept.end(), p);
    };
    EXPECT_TRUE(keeps(0, needle));
    EXPECT_FALSE(keeps(1, needle));
    for (int p : {needle - 2, needle - 1, needle + 1, needle + 2}) {
      EXPECT_EQ(keeps(0, p), kernel == 5) << p;
      EXPECT_FALSE(keeps(1, p));
    }
  }
}

TEST(SnapKV, equal_query_heads_count_once_and_keys_can_stand_for_queries) {
  const LayerShape one{.kv_heads = 2, .q_heads = 2, .dim_k = 32, .dim_v = 16};
  const LayerShape three{.kv_heads = 2, .q_heads = 6, .dim_k = 32, .dim_v = 16};
  const Sequences data(one, 1, 200);
  Sequences repeated(three, 1, 200);
  repeated.k = data.k;
  repeated.v = data.v;
  for (int t = 0; t < 200; ++t) {
    for (int q = 0; q < 6; ++q) {
      std::copy_n(data.q.data() + (t * 2 + q / 3) * 32, 32, repeated.q.data() + (t * 6 + q) * 32);
    }
  }
  KVCache a = make("snapkv(budget=60)", one), b = make("snapkv(budget=60)", three);
  data.feed(a, {200});
  repeated.feed(b, {200});
  for (int head = 0; head < 2; ++head) EXPECT_EQ(a.positions(0, head), b.positions(0, head));

  Sequences self = data;
  self.q = self.k;
  KVCache query = make("snapkv(budget=60)", one), proxy = make("snapkv(budget=60)", one),
          at_once = make("snapkv(budget=60,query_source=proxy)", one);
  self.feed(query, {120, 80});
  for (const Range r : {Range{0, 120}, Range{120, 200}}) {
    (void)proxy.update_and_fetch(self.keys(r), self.values(r));
    (void)at_once.update_and_fetch(self.keys(r), self.values(r));
    EXPECT_EQ(at_once.peek().staging_bytes, 0u);
  }
  EXPECT_EQ(query.state(), proxy.state());
  for (int head = 0; head < 2; ++head) EXPECT_EQ(at_once.positions(0, head), proxy.positions(0, head));
}

// --- key norm ------------------------------------------------------------------------------------

TEST(Knorm, the_smallest_norms_stay_with_newer_rows_on_ties) {
  std::mt19937 random(3);
  for (int round = 0; round < sized(1000, 60); ++round) {
    const int n = 2 + static_cast<int>(random() % 80), budget = 1 + static_cast<int>(random() % 60);
    const int sinks = static_cast<int>(random() % static_cast<unsigned>(budget)),
              recent = static_cast<int>(random() % static_cast<unsigned>(budget - sinks));
    const bool low = random() % 2 == 0;
    const LayerShape shape{.kv_heads = 1, .q_heads = 1, .dim_k = 4, .dim_v = 4};
    Sequences data(shape, 1, n);
    for (float& x : data.k) x = static_cast<float>(random() % 3);  // many ties
    KVCache cache = make(
        fmt::format("knorm(budget={},n_sink={},recent={},knorm_keep={})", budget, sinks, recent, low ? "low" : "high"),
        shape);
    data.feed(cache, {n});
    std::vector<std::pair<float, int>> rest;
    std::vector<int32_t> kept;
    for (int t = 0; t < n; ++t) {
      float square = 0;
      for (int c = 0; c < 4; ++c)
        square += data.k[static_cast<size_t>(t * 4 + c)] * data.k[static_cast<size_t>(t * 4 + c)];
      if (t < sinks || t >= n - recent) {
        kept.push_back(t);
      } else {
        rest.emplace_back(low ? square : -square, -t);
      }
    }
    std::sort(rest.begin(), rest.end());
    for (size_t i = 0; i < rest.size() && static_cast<int>(kept.size()) < budget; ++i) kept.push_back(-rest[i].second);
    std::sort(kept.begin(), kept.end());
    ASSERT_EQ(cache.positions(0, 0), kept) << n << " " << budget << " " << sinks << " " << recent << " " << low;
  }
}

TEST(Knorm, kept_rows_do_not_depend_on_chunks) {
  const Sequences data(kShape, 1, 400);
  KVCache whole = make("knorm(budget=60)");
  data.feed(whole, {400});
  for (int size : {1, 16, 64, 256}) {
    KVCache cut = make("knorm(budget=60)");
    data.feed(cut, chunks_of(400, size));
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(cut.positions(0, head), whole.positions(0, head));
      EXPECT_EQ(cut.scores(0, head), whole.scores(0, head));
    }
    EXPECT_EQ(cut.decode(Side::key), whole.decode(Side::key));
    EXPECT_EQ(cut.decode(Side::value), whole.decode(Side::value));
    EXPECT_EQ(cut.peek().calls.key_proxy, 0) << "no query is needed";
  }
}

// --- StreamingLLM --------------------------------------------------------------------------------

std::vector<int32_t> streamed(int tokens, int sinks, int window) {
  std::vector<int32_t> kept = iota(0, std::min(sinks, tokens));
  for (int p = std::max(sinks, tokens - window); p < tokens; ++p) kept.push_back(p);
  return kept;
}

TEST(StreamingLLM, positions_and_memory_whatever_the_calls_and_the_codec) {
  const Sequences data(kShape, 1, 700);
  for (const std::string coding : {"", "+kivi(group=16,residual=16)", "+turboquant_rvq", "+exact"}) {
    for (const std::vector<int>& chunks : {ones(700), chunks_of(700, 37), {600, 50, 50}, {2, 1, 1, 1, 3, 692}}) {
      if (kSanitized && chunks.size() == 700) continue;
      KVCache cache = make("streaming_llm(window=100)" + coding);
      int at = 0;
      size_t most = 0, least = std::numeric_limits<size_t>::max();
      for (int n : chunks) {
        data.step(cache, {at, at + n});
        at += n;
        ASSERT_EQ(cache.positions(0, 1), streamed(at, 4, 100)) << coding << " " << at;
        ASSERT_EQ(cache.size(), std::min(at, 104));
        if (at > 300) {
          most = std::max(most, cache.nbytes());
          least = std::min(least, cache.nbytes());
        }
      }
      const size_t block = static_cast<size_t>(kShape.kv_heads) * 2 * (128 * 32 * 2 + 256);
      EXPECT_LE(most, least + block) << coding;
    }
  }
}

TEST(StreamingLLM, the_stored_bytes_do_not_depend_on_chunks) {
  const Sequences data(kShape, 1, 500);
  for (const std::string method : {"streaming_llm(window=100)", "streaming_llm(window=100)+kivi(group=16,residual=32)",
                                   "streaming_llm(window=70)+turboquant_rvq"}) {
    KVCache whole = make(method), cut = make(method);
    data.store(whole, {0, 500});
    int at = 0;
    for (int n : {1, 2, 300, 1, 96, 100}) {
      data.store(cut, {at, at + n});
      at += n;
    }
    EXPECT_EQ(whole.state(), cut.state()) << method;
  }
}

void rotate(float* x, int position, const RopeSpec& rope, int sign = 1) {
  const int half = rope.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = sign * double{rope.frequencies[static_cast<size_t>(i)]} * position;
    float& a = x[rope.interleaved ? 2 * i : i];
    float& b = x[rope.interleaved ? 2 * i + 1 : i + half];
    const double u = a, v = b;
    a = static_cast<float>(u * std::cos(angle) - v * std::sin(angle));
    b = static_cast<float>(u * std::sin(angle) + v * std::cos(angle));
  }
}

TEST(StreamingLLM, cache_positions_equal_keys_rotated_anew) {
  for (bool interleaved : {false, true}) {
    for (float base : {10000.0f, 500.0f}) {
      RopeSpec rope{.rotary_dim = 24, .interleaved = interleaved, .frequencies = {}};
      for (int i = 0; i < 12; ++i) rope.frequencies.push_back(std::pow(base, -static_cast<float>(i) / 12));
      const LayerShape shape{.kv_heads = 1, .q_heads = 2, .dim_k = 32, .dim_v = 16, .rope = &rope};
      const Sequences plain(shape, 1, 90);
      Sequences rotated = plain;
      for (int t = 0; t < 90; ++t) {
        rotate(rotated.k.data() + t * 32, t, rope);
        for (int h = 0; h < 2; ++h) rotate(rotated.q.data() + (t * 2 + h) * 32, t, rope);
      }
      KVCache cache(parse_method("streaming_llm(window=20,positions=cache,dtype=f32)"), shape);
      KVCache by_true(parse_method("streaming_llm(window=20,dtype=f32)"), shape);
      double differs = 0;
      for (int t = 0; t < 90; ++t) {
        std::vector<int32_t> rows = cache.batch() ? cache.positions(0, 0) : std::vector<int32_t>();
        const std::vector<float> got = rotated.step(cache, {t, t + 1});
        differs = std::max(differs, relative_l2(rotated.step(by_true, {t, t + 1}), got));
        rows.push_back(t);
        // Row number m in order stands at position m.
        Sequences moved = plain;
        const int n = static_cast<int>(rows.size());
        for (int m = 0; m < n; ++m) rotate(moved.k.data() + rows[static_cast<size_t>(m)] * 32, m, rope);
        for (int h = 0; h < 2; ++h) rotate(moved.q.data() + (t * 2 + h) * 32, n - 1, rope);
        std::vector<float> expected;
        for (int h = 0; h < 2; ++h) {
          const std::vector<double> w = weights(moved, 0, t, h, rows);
          for (int c = 0; c < 16; ++c) {
            double sum = 0;
            for (int m = 0; m < n; ++m)
              sum += w[static_cast<size_t>(m)] *
                     double{moved.v[static_cast<size_t>(rows[static_cast<size_t>(m)] * 16 + c)]};
            expected.push_back(static_cast<float>(sum));
          }
        }
        EXPECT_LT(relative_l2(got, expected), 1e-4) << t;
      }
      EXPECT_GT(differs, 1e-2) << "the correction does something";
    }
  }
  try {
    make("streaming_llm(positions=cache)");
    ADD_FAILURE() << "taken without RoPE frequencies";
  } catch (const QuantizerConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("stream_positions"));
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
