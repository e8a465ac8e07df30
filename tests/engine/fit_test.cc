// Codecs that are fitted: each stream from its own first rows, once, and the fit goes wherever the rows go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/check.h"
#include "support/reference_attention.h"
#include "support/tensors.h"
#include "veloxquant/cache_set.h"
#include "veloxquant/codecs.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kFitRows = 50;

/// f32 rows less the mean of the first ones. It writes down what it is fitted from.
class MeanRows final : public Codec {
 public:
  using Log = std::vector<std::vector<float>>;
  MeanRows(int dim, std::shared_ptr<Log> log, std::vector<float> mean = {})
      : rows_(raw_rows(DType::f32, dim)), log_(std::move(log)), mean_(std::move(mean)) {}

  std::string name() const override { return "mean"; }
  int dim() const override { return rows_->dim(); }
  const BlockFormat& format() const override { return rows_->format(); }
  CodecFloats floats() const override { return {dim() + 1, dim() + 1, rows_->floats().tile}; }

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    VQ_CHECK(!mean_.empty());
    std::vector<float> x;
    for (int r = 0; r < rows.rows; ++r) {
      for (int c = 0; c < dim(); ++c) x.push_back(rows.x[r * rows.ld + c] - mean_[static_cast<size_t>(c)]);
    }
    rows_->encode({x.data(), dim(), rows.rows, dim()}, block, unit);
  }
  void decode(BlockView block, Range range, float* out, int64_t ld) const override {
    rows_->decode(block, range, out, ld);
    for (int r = 0; r < range.size(); ++r) {
      for (int c = 0; c < dim(); ++c) out[r * ld + c] += mean_[static_cast<size_t>(c)];
    }
  }
  // A prepared query ends with its product with the mean, an accumulator with the sum of weights.
  void prepare_query(const float* q, int n, float* prep) const override {
    for (int i = 0; i < n; ++i, q += dim()) {
      prep = std::copy_n(q, dim(), prep);
      *prep++ = mean_.empty() ? 0.0f : std::inner_product(q, q + dim(), mean_.begin(), 0.0f);
    }
  }
  void score(const float* prep, int n, BlockView block, Range range, float* logit, int64_t ld,
             float* tile) const override {
    for (int i = 0; i < n; ++i, prep += dim() + 1, logit += ld) {
      rows_->score(prep, 1, block, range, logit, ld, tile);
      for (int r = 0; r < range.size(); ++r) logit[r] += prep[dim()];
    }
  }
  void accumulate(const float* weight, int64_t ld, int n, BlockView block, Range range, float* acc,
                  float* tile) const override {
    for (int i = 0; i < n; ++i, weight += ld, acc += dim() + 1) {
      rows_->accumulate(weight, ld, 1, block, range, acc, tile);
      for (int r = 0; r < range.size(); ++r) acc[dim()] += weight[r];
    }
  }
  void finish(const float* acc, int n, float* out) const override {
    for (int i = 0; i < n; ++i, acc += dim() + 1, out += dim()) {
      for (int c = 0; c < dim(); ++c)
        out[c] += acc[c] + (mean_.empty() ? 0 : acc[dim()] * mean_[static_cast<size_t>(c)]);
    }
  }

  int fit_rows() const override { return mean_.empty() ? kFitRows : 0; }
  std::shared_ptr<const Codec> fit(const RowsView& rows) const override {
    std::vector<float> mean(static_cast<size_t>(dim())), seen;
    for (int r = 0; r < rows.rows; ++r) {
      for (int c = 0; c < dim(); ++c) {
        seen.push_back(rows.x[r * rows.ld + c]);
        mean[static_cast<size_t>(c)] += seen.back() / static_cast<float>(rows.rows);
      }
    }
    log_->push_back(std::move(seen));
    return std::make_shared<MeanRows>(dim(), log_, std::move(mean));
  }
  std::vector<std::byte> fitted_state() const override {
    std::vector<std::byte> bytes(mean_.size() * sizeof(float));
    if (!bytes.empty()) std::memcpy(bytes.data(), mean_.data(), bytes.size());
    return bytes;
  }
  std::shared_ptr<const Codec> fit_from(std::span<const std::byte> bytes) const override {
    std::vector<float> mean(static_cast<size_t>(dim()));
    if (bytes.size() != mean.size() * sizeof(float)) throw FormatError("mean: another size");
    std::memcpy(mean.data(), bytes.data(), bytes.size());
    for (float m : mean) {
      if (!(std::abs(m) < 100)) throw FormatError("mean: out of range");
    }
    return std::make_shared<MeanRows>(dim(), log_, std::move(mean));
  }

 private:
  std::shared_ptr<const Codec> rows_;
  std::shared_ptr<Log> log_;
  std::vector<float> mean_;  // empty: unfitted
};

/// Both sides wait for `rows`, then every row is coded at its commit.
class Wait final : public Placement {
 public:
  explicit Wait(int rows) : rows_(rows) {}
  std::string name() const override { return "wait"; }
  int frontier(Side, int rows) const override { return rows < rows_ ? 0 : rows; }

 private:
  int rows_;
};

/// A method of such codecs. All its caches share one log.
struct MeanMethod {
  std::shared_ptr<MeanRows::Log> log = std::make_shared<MeanRows::Log>();
  std::shared_ptr<MethodDef> def = std::make_shared<MethodDef>(*find_method("exact"));
  MethodSpec spec = parse_method("exact");
  explicit MeanMethod(int wait = kFitRows) {
    def->build = [log = log, wait](const Options&, const BuildContext& context) {
      return Recipe{.placement = std::make_shared<Wait>(wait),
                    .key = std::make_shared<MeanRows>(context.shape.dim_k, log),
                    .value = std::make_shared<MeanRows>(context.shape.dim_v, log)};
    };
    spec.def = def.get();
  }
};

constexpr LayerShape kShape{.kv_heads = 2, .q_heads = 4, .dim_k = 32, .dim_v = 24};

/// Rows that fp16 does not hold: what is stored is not what was given.
Sequences unrounded(const LayerShape& shape, int batch, int n) {
  Sequences data(shape, batch, n);
  for (auto* x : {&data.k, &data.v}) {
    for (float& v : *x) v = v * 1.0003f + 0.5f;
  }
  return data;
}

TEST(Fit, every_stream_is_fitted_once_from_its_first_rows_as_stored) {
  const MeanMethod method;
  const Sequences data = unrounded(kShape, 2, 120);
  KVCache cache(method.spec, kShape);
  data.feed(cache, {30, kFitRows - 31});
  EXPECT_EQ(cache.peek().key.coded_rows, 0);
  EXPECT_TRUE(method.log->empty());
  const std::vector<float> exact[] = {cache.decode(Side::key), cache.decode(Side::value)};
  data.feed(cache, {1}, kFitRows - 1);
  EXPECT_EQ(cache.peek().key.exact_rows, 0);
  EXPECT_EQ(cache.peek().value.coded_rows, kFitRows * 2 * kShape.kv_heads);
  data.feed(cache, {1, 5, 64}, kFitRows);
  ASSERT_EQ(method.log->size(), 2u * 2 * static_cast<size_t>(kShape.kv_heads)) << "batch rows, heads and sides";
  size_t next = 0;
  for (int b = 0; b < 2; ++b) {
    for (int head = 0; head < kShape.kv_heads; ++head) {
      for (Side side : kSides) {
        const int dim = side == Side::key ? kShape.dim_k : kShape.dim_v;
        const std::vector<float>& seen = (*method.log)[next++];
        ASSERT_EQ(seen.size(), static_cast<size_t>(kFitRows * dim));
        const auto stored = exact[static_cast<size_t>(side)].begin() + (b * 2 + head) * (kFitRows - 1) * int64_t{dim};
        EXPECT_TRUE(std::equal(seen.begin(), seen.end() - dim, stored)) << "all but the row that came last";
        const Sequences& d = data;
        const auto& given = side == Side::key ? d.k : d.v;
        for (int c = 0; c < dim; ++c) {
          const float x =
              given[static_cast<size_t>(((b * d.tokens + kFitRows - 1) * kShape.kv_heads + head) * dim + c)];
          EXPECT_EQ(seen[static_cast<size_t>((kFitRows - 1) * dim + c)], f32_from_f16(f16_from_f32(x)));
        }
      }
    }
  }
}

// The fake, and the methods that have outlier channels.
class Fitted : public testing::TestWithParam<const char*> {
 protected:
  KVCache make() const { return KVCache(spec(), kShape); }
  MethodSpec spec() const {
    return std::string(GetParam()) == "mean"
               ? mean_.spec
               : parse_method(std::string(GetParam()) + "(two_stream=true,outliers=5,calibration=50)");
  }
  MeanMethod mean_;
};
INSTANTIATE_TEST_SUITE_P(Codecs, Fitted, testing::Values("mean", "turboquant_mse", "turboquant_prod", "qjl"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Fitted, any_chunking_gives_equal_bytes_and_equal_following_steps) {
  const Sequences data = unrounded(kShape, 2, 150);
  KVCache whole = make();
  data.feed(whole, {140});
  const auto bytes = whole.state();
  const auto next = data.feed(whole, ones(10), 140);
  for (const std::vector<int>& chunks : {ones(140), chunks_of(140, 7), {49, 1, 90}, {50, 90}, {51, 89}}) {
    KVCache cache = make();
    data.feed(cache, chunks);
    EXPECT_EQ(cache.state(), bytes);
    EXPECT_EQ(data.feed(cache, ones(10), 140), next);
  }
}

TEST_P(Fitted, attention_equals_dense_attention_before_at_and_after_the_fit) {
  const Sequences data(kShape, 2, 120);
  KVCache cache = make();
  int at = 0;
  for (int tokens : {48, 1, 1, 1, 20, 1}) {
    std::vector<DenseRows> stores;
    for (int b = 0; b < 2; ++b) stores.push_back(stored_rows(cache, b));
    const auto out = data.step(cache, {at, at + tokens});
    const size_t width = out.size() / 2;
    for (int b = 0; b < 2; ++b) {
      DenseRows& store = stores[static_cast<size_t>(b)];
      const auto own = [&](const std::vector<float>& x, int row) {
        return x.begin() + (b * data.tokens + at) * int64_t{row};
      };
      const int k = kShape.kv_heads * kShape.dim_k, v = kShape.kv_heads * kShape.dim_v;
      store.k.insert(store.k.end(), own(data.k, k), own(data.k, k) + tokens * int64_t{k});
      store.v.insert(store.v.end(), own(data.v, v), own(data.v, v) + tokens * int64_t{v});
      store.rows = at + tokens;
      const auto expected =
          reference_attention(kShape, store, &*own(data.q, kShape.q_heads * kShape.dim_k), tokens, {});
      const std::vector<float> mine(out.begin() + static_cast<int64_t>(static_cast<size_t>(b) * width),
                                    out.begin() + static_cast<int64_t>(static_cast<size_t>(b + 1) * width));
      EXPECT_LT(relative_l2(mine, expected), 1e-3) << "batch row " << b << " at " << at;
    }
    at += tokens;
  }
}

TEST_P(Fitted, batch_rows_are_fitted_apart) {
  const Sequences data(kShape, 2, 90);
  KVCache both = make();
  data.feed(both, {60});
  for (int b = 0; b < 2; ++b) {
    const auto one = [&](Tensor t) {
      t.data = static_cast<const float*>(t.data) + b * t.stride_batch;
      t.batch = 1;
      return t;
    };
    KVCache solo = make();
    solo.append(one(data.keys({0, 60})), one(data.values({0, 60})));
    EXPECT_EQ(stored_rows(solo, 0).k, stored_rows(both, b).k);
    EXPECT_EQ(stored_rows(solo, 0).v, stored_rows(both, b).v);
  }
}

TEST_P(Fitted, the_fit_goes_with_the_rows) {
  const Sequences data(kShape, 2, 90), other(kShape, 2, 90, 77);
  KVCache straight = make();
  data.feed(straight, {60});
  KVCache original = make();
  data.feed(original, {60});
  const size_t fits = mean_.log->size();
  KVCache copy = original.copy();
  original.reset();
  other.feed(original, {60});
  KVCache joined = make();
  const std::vector<int> first{0}, second{1}, swapped{1, 0};
  {
    KVCache a = copy.copy(first), b = copy.copy(second);
    joined.join(std::move(b));
    joined.join(std::move(a));
  }
  joined.select(swapped);
  KVCache restored = make();
  restored.set_state(straight.state());
  EXPECT_EQ(mean_.log->size(), fits * 3 / 2) << "fitted again by the other rows alone";
  const auto expected = data.feed(straight, {1, 20}, 60);
  EXPECT_EQ(data.feed(copy, {1, 20}, 60), expected);
  EXPECT_EQ(data.feed(joined, {1, 20}, 60), expected);
  EXPECT_EQ(data.feed(restored, {1, 20}, 60), expected);
  EXPECT_EQ(copy.state(), straight.state());
  EXPECT_EQ(joined.state(), straight.state());
  EXPECT_EQ(restored.state(), straight.state());
}

TEST_P(Fitted, a_trim_keeps_the_fit_as_long_as_coded_rows_are_left) {
  const Sequences data(kShape, 1, 120), other(kShape, 1, 120, 77);
  KVCache cache = make(), straight = make();
  data.feed(straight, {100});
  data.feed(cache, {60});
  EXPECT_EQ(cache.trim(7), 7);
  data.feed(cache, {47}, 53);
  EXPECT_EQ(cache.state(), straight.state());

  // Below the rows it needs nothing is coded, and what comes then decides anew.
  EXPECT_EQ(cache.trim(60), 60);
  EXPECT_EQ(cache.peek().key.coded_rows, 0);
  EXPECT_EQ(cache.trim(40), 40);
  EXPECT_EQ(cache.size(), 0);
  KVCache fresh = make();
  other.feed(fresh, {70});
  other.feed(cache, {70});
  EXPECT_EQ(cache.state(), fresh.state());
  cache.reset();
  data.feed(cache, {100});
  EXPECT_EQ(cache.state(), straight.state());
}

TEST_P(Fitted, popped_rows_still_count_for_the_fit) {
  const Sequences data(kShape, 1, 120);
  KVCache cache = make(), whole = make();
  data.feed(whole, {100});
  for (int at = 0; at < 100; ++at) {
    data.store(cache, {at, at + 1});
    if (at >= 20) cache.pop_front(1);
    KVCache restored = make();
    restored.set_state(cache.state());
    ASSERT_EQ(restored.state(), cache.state()) << "after row " << at;
  }
  EXPECT_EQ(cache.size(), 20);
  EXPECT_EQ(cache.used_bytes(), whole.used_bytes() / 5);
  whole.pop_front(80);
  EXPECT_EQ(cache.state(), whole.state());
  EXPECT_EQ(data.feed(cache, {1, 10}, 100), data.feed(whole, {1, 10}, 100));
}

TEST(Fit, a_damaged_fit_is_refused_and_changes_nothing) {
  const LayerShape shape{.dim_k = 16, .dim_v = 16};
  const MeanMethod method;
  const Sequences data(shape, 1, 60);
  KVCache cache(method.spec, shape), target(method.spec, shape);
  data.feed(cache, {60});
  data.feed(target, {10});
  const auto good = cache.state(), before = target.state();
  const auto with_hash = [](std::vector<std::byte> bytes) {
    constexpr size_t kHeader = 20;
    const uint64_t hash = XXH64(bytes.data() + kHeader, bytes.size() - kHeader, 0);
    std::memcpy(bytes.data() + kHeader - sizeof hash, &hash, sizeof hash);
    return bytes;
  };
  EXPECT_EQ(with_hash(good), good);
  // The fit of the keys: a count of bytes, then the mean; the frontier is before it.
  std::vector<std::byte> mark(8);
  const int32_t frontier = 60, count = 16 * sizeof(float);
  std::memcpy(mark.data(), &frontier, 4);
  std::memcpy(mark.data() + 4, &count, 4);
  const auto at = std::search(good.begin(), good.end(), mark.begin(), mark.end()) - good.begin();
  ASSERT_LT(at, static_cast<int64_t>(good.size()));
  for (int offset : {4, 5, 7, 11, 15}) {
    auto bad = good;
    bad[static_cast<size_t>(at + offset)] = std::byte{0x7f};
    EXPECT_THROW(target.set_state(with_hash(bad)), FormatError) << offset;
    EXPECT_EQ(target.state(), before);
  }
  target.set_state(good);
  EXPECT_EQ(target.state(), good);
}

TEST(Fit, a_placement_that_codes_too_early_is_refused_by_name) {
  const MeanMethod method(kFitRows - 1);
  try {
    KVCache cache(method.spec, kShape);
    FAIL() << "it was accepted";
  } catch (const QuantizerConfigError& error) {
    EXPECT_THAT(error.problems(),
                ElementsAre(HasSubstr("placement wait codes rows before there are 50, from which key codec mean"),
                            HasSubstr("value codec mean")));
  }
}

}  // namespace
}  // namespace veloxquant::test
