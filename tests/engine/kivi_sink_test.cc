// KIVI with a pool of exact rows: which rows, that they are exact, and that nothing else changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>

#include "support/sanitizer.h"
#include "support/tensors.h"
#include "veloxquant/cache.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

constexpr LayerShape kShape{.kv_heads = 2, .q_heads = 2, .dim_k = 64, .dim_v = 64};

KVCache make(const std::string& method, const LayerShape& shape = kShape) {
  return KVCache(parse_method(method), shape);
}

void scale_row(Sequences& data, int batch_row, int token, float factor) {
  const auto scaled = [&](std::vector<float>& x, int heads, int dim) {
    float* row = x.data() + (batch_row * data.tokens + token) * heads * dim;
    for (int i = 0; i < heads * dim; ++i) row[i] = f32_from_f16(f16_from_f32(row[i] * factor));
  };
  scaled(data.k, data.shape.kv_heads, data.shape.dim_k);
  scaled(data.v, data.shape.kv_heads, data.shape.dim_v);
}

/// Mean square error of the stored keys of the rows that `counts` accepts.
template <class Counts>
double error(KVCache& cache, const Sequences& data, int batch_row, Counts&& counts) {
  const std::vector<float> keys = cache.decode(Side::key);
  const LayerShape& s = data.shape;
  const int n = cache.size();
  double sum = 0;
  int64_t count = 0;
  for (int t = 0; t < n; ++t) {
    if (!counts(t)) continue;
    for (int h = 0; h < s.kv_heads; ++h) {
      for (int c = 0; c < s.dim_k; ++c, ++count) {
        const double d =
            double{keys[static_cast<size_t>(((batch_row * s.kv_heads + h) * n + t) * s.dim_k + c)]} -
            double{data.k[static_cast<size_t>(((batch_row * data.tokens + t) * s.kv_heads + h) * s.dim_k + c)]};
        sum += d * d;
      }
    }
  }
  return sum / static_cast<double>(count);
}

const char* const kPlanted = "kivi_sink(residual=32,n_sink=5)";

TEST(KiviSink, planted_rows_are_exact_and_the_others_are_not_worse_for_them) {
  Sequences data(kShape, 1, 128);
  const std::vector<int> planted = {0, 7, 20, 41, 90};
  for (int t : planted) scale_row(data, 0, t, 25);
  const auto is_planted = [&](int t) { return std::count(planted.begin(), planted.end(), t) > 0; };
  const auto others = [&](int t) { return !is_planted(t); };
  KVCache sink = make(kPlanted), kivi = make("kivi(residual=32)");
  data.store(sink, {0, 128});
  data.store(kivi, {0, 128});
  EXPECT_THAT(sink.pool_positions(0), UnorderedElementsAre(0, 7, 20, 41, 90));
  EXPECT_EQ(error(sink, data, 0, is_planted), 0);
  EXPECT_LE(error(sink, data, 0, others), 0.16);
  EXPECT_GE(error(kivi, data, 0, others), 10 * error(sink, data, 0, others));

  // The first five, whatever they are like, are another matter.
  KVCache first = make("kivi_sink(residual=32,sink_signal=external)");
  const std::vector<int32_t> five = {0, 1, 2, 3, 4};
  first.want_sinks(0, five);
  data.store(first, {0, 128});
  EXPECT_THAT(first.pool_positions(0), ElementsAre(0, 1, 2, 3, 4));
  const auto all = [](int) { return true; };
  EXPECT_GE(error(first, data, 0, all), 10 * error(sink, data, 0, all));
  Sequences front(kShape, 1, 128);
  for (int t = 0; t < 5; ++t) scale_row(front, 0, t, 25);
  KVCache by_norm = make(kPlanted), by_host = make("kivi_sink(residual=32,sink_signal=external)");
  by_host.want_sinks(0, five);
  front.store(by_norm, {0, 128});
  front.store(by_host, {0, 128});
  EXPECT_EQ(error(by_norm, front, 0, all), error(by_host, front, 0, all));
}

TEST(KiviSink, without_sinks_it_is_kivi) {
  const Sequences data(kShape, 2, 300);
  KVCache sink = make("kivi_sink(n_sink=0)"), kivi = make("kivi");
  EXPECT_EQ(data.feed(sink, {200, 1, 1, 98}), data.feed(kivi, {200, 1, 1, 98}));
  EXPECT_EQ(sink.used_bytes(), kivi.used_bytes());
  for (Side side : kSides) EXPECT_EQ(sink.decode(side), kivi.decode(side));
}

TEST(KiviSink, every_batch_row_has_its_own) {
  Sequences data(kShape, 2, 200);
  for (int t : {3, 50, 70, 100, 120}) scale_row(data, 0, t, 25);
  for (int t : {1, 30, 60, 90, 127}) scale_row(data, 1, t, 25);
  KVCache cache = make(kPlanted);
  data.store(cache, {0, 200});
  EXPECT_THAT(cache.pool_positions(0), UnorderedElementsAre(3, 50, 70, 100, 120));
  EXPECT_THAT(cache.pool_positions(1), UnorderedElementsAre(1, 30, 60, 90, 127));
  for (int b = 0; b < 2; ++b) {
    EXPECT_EQ(error(cache, data, b, [&](int t) { return (b ? t == 30 : t == 50); }), 0);
  }
}

TEST(KiviSink, growing_norms_never_overfill_the_pool) {
  const int n = sized(10000, 1500);
  const LayerShape shape{.kv_heads = 1, .q_heads = 1, .dim_k = 64, .dim_v = 64};
  Sequences data(shape, 1, n);
  for (int t = 0; t < n; ++t) scale_row(data, 0, t, 1 + static_cast<float>(t) / 1000);
  KVCache cache = make("kivi_sink(sink_signal=key_norm)", shape);
  for (int at = 0; at < n; at += 250) {
    data.store(cache, {at, at + 250});
    EXPECT_LE(cache.pool_positions(0).size(), 5u);
  }
  const auto frontier = static_cast<size_t>(n / 128 * 128), values = static_cast<size_t>(n - 128);
  const size_t kivi =
      frontier / 32 * 64 * 12 + values * (16 + 2 * 4) + (2 * static_cast<size_t>(n) - frontier - values) * 128;
  EXPECT_EQ(cache.used_bytes(), kivi + static_cast<size_t>(n) * 4 + 5 * (2 * 128 + 4));
  EXPECT_LE(cache.nbytes(), cache.used_bytes() * 103 / 100 + 4 * 64 * 128);
}

TEST(KiviSink, suppressed_rows_need_the_two_sided_signal) {
  Sequences data(kShape, 1, 128);
  for (int t : {0, 40, 77}) scale_row(data, 0, t, 0.1f);
  KVCache two_sided = make("kivi_sink(residual=32,n_sink=3,sink_signal=two_sided)"),
          one_sided = make("kivi_sink(residual=32,n_sink=3,sink_signal=key_norm)");
  data.store(two_sided, {0, 128});
  data.store(one_sided, {0, 128});
  EXPECT_THAT(two_sided.pool_positions(0), UnorderedElementsAre(0, 40, 77));
  for (int32_t p : one_sided.pool_positions(0)) EXPECT_TRUE(p != 0 && p != 40 && p != 77);
}

TEST(KiviSink, attention_sees_the_pool_once_and_holes_never) {
  Sequences data(kShape, 2, 400);
  for (int t : {0, 9, 33, 150}) scale_row(data, 0, t, 6);
  for (int t : {5, 9, 100}) scale_row(data, 1, t, 6);
  for (const char* method :
       {"kivi_sink(bits=8,group=16,residual=16)", "kivi_sink(bits=8,group=16,residual=16,flush_rule=aligned_window)",
        "kivi_sink(bits=8,group=16,residual=16,n_sink=40)"}) {
    KVCache cache = make(method), exact = make("exact");
    const std::vector<int> chunks = {1, 100, 1, 1, 64, 30, 1, 1, 1, 180};
    const std::vector<float> a = data.feed(cache, chunks), b = data.feed(exact, chunks);
    EXPECT_LT(relative_l2(a, b), 0.02) << method;
    EXPECT_EQ(cache.size(), 380);
    std::vector<int32_t> all(380);
    for (int i = 0; i < 380; ++i) all[static_cast<size_t>(i)] = i;
    EXPECT_EQ(cache.positions(0, 1), all);
    // Windows and slopes read positions one by one.
    AttendIn in = data.attend_in({379, 380});
    in.window = 300;
    const float slopes[] = {0.01f, 0.05f};
    in.alibi = slopes;
    EXPECT_LT(relative_l2(cache.attend(in), exact.attend(in)), 0.02) << method;
  }
}

TEST(KiviSink, trimmed_rows_leave_the_pool_or_go_back_to_their_places) {
  Sequences data(kShape, 1, 300);
  for (int t : {0, 9, 140, 150, 200}) scale_row(data, 0, t, 25);
  KVCache cache = make("kivi_sink(group=32,residual=128)"), fresh = make("kivi_sink(group=32,residual=128)");
  data.feed(cache, {300});
  EXPECT_THAT(cache.pool_positions(0), UnorderedElementsAre(0, 9, 140, 150, 200));
  EXPECT_EQ(cache.trim(130), 130);  // 170 rows: the unit block from 128 on is open again
  EXPECT_THAT(cache.pool_positions(0), UnorderedElementsAre(0, 9));
  EXPECT_EQ(cache.size(), 170);
  EXPECT_EQ(error(cache, data, 0, [](int t) { return t == 140 || t == 150; }), 0) << "exact still";
  data.feed(fresh, {170});
  EXPECT_EQ(cache.used_bytes(), fresh.used_bytes());
  data.feed(cache, {130}, 170);
  EXPECT_THAT(cache.pool_positions(0), UnorderedElementsAre(0, 9, 140, 150, 200));
  EXPECT_EQ(error(cache, data, 0, [](int t) { return t == 140 || t == 200; }), 0);
}

TEST(KiviSink, positions_the_host_wants_are_checked_and_remembered) {
  const Sequences data(kShape, 1, 300);
  KVCache cache = make("kivi_sink(sink_signal=external)");
  const std::vector<int32_t> later = {2, 200, 500};
  cache.want_sinks(0, later);
  data.store(cache, {0, 150});
  EXPECT_THAT(cache.pool_positions(0), ElementsAre(2));
  data.store(cache, {150, 300});
  EXPECT_THAT(cache.pool_positions(0), ElementsAre(2, 200));
  const std::vector<int32_t> negative = {-1}, twice = {4, 7, 4};
  EXPECT_THROW(cache.want_sinks(0, negative), ValueError);
  EXPECT_THROW(cache.want_sinks(0, twice), ValueError);
  EXPECT_THROW(cache.want_sinks(1, later), std::out_of_range);
}

}  // namespace
}  // namespace veloxquant::test
