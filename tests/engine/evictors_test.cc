// Which rows each evictor keeps: against its rule, worked out in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "support/kept_rows.h"
#include "support/sanitizer.h"

namespace veloxquant::test {
namespace {

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

}  // namespace
}  // namespace veloxquant::test
