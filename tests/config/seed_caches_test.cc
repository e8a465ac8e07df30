// The cache classes of the original system: every documented member is there and says what its document says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "veloxquant/builder.h"
#include "veloxquant/errors.h"
#include "veloxquant/layer_cache.h"
#include "veloxquant/vector_cache.h"

namespace veloxquant {
namespace {

constexpr int kHeads = 2, kDim = 8, kTokens = 30;

/// Keys or values of a call: [1][kHeads][kTokens][kDim].
struct Rows {
  std::vector<float> x = std::vector<float>(size_t{kHeads} * kTokens * kDim);
  explicit Rows(int salt) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 37 + static_cast<size_t>(salt)) % 23) / 8 - 1;
  }
  Tensor tensor() const { return Tensor::bhsd(x.data(), DType::f32, 1, kHeads, kTokens, kDim); }
};

// What all caches of layers share: rows come back, positions are true, nothing is trimmed.
template <class Cache>
void expect_evictor(Cache& cache, int kept) {
  const Rows k(1), v(2);
  EXPECT_EQ(cache.size(), 0);
  const KVCache::Fetched fetched = cache.update_and_fetch(k.tensor(), v.tensor());
  EXPECT_EQ(fetched.rows, kTokens) << "the call's own rows are not cut";
  const Mask mask = cache.make_mask(5);
  EXPECT_EQ(mask.kind, Mask::Kind::array);
  EXPECT_EQ(mask.keys, kept + 5);
  EXPECT_EQ(cache.offset(), kTokens);
  EXPECT_EQ(cache.size(), kept);
  EXPECT_FALSE(cache.is_trimmable());
  EXPECT_EQ(cache.trim(4), 0);
  EXPECT_FALSE(cache.engine().supports_merge());
  const std::vector<std::byte> state = cache.state();
  const int rows = cache.size();
  cache.reset();
  EXPECT_TRUE(cache.empty());
  cache.set_state(state);
  EXPECT_EQ(cache.size(), rows);
  EXPECT_EQ(cache.offset(), kTokens);
}

constexpr size_t kRowBytes = kDim * 4;  // nominal: two bytes an element, both sides

TEST(seed_caches, H2OKVCache_has_its_members) {
  H2OKVCache cache(KVCacheConfig{.method = "h2o", .head_dim = kDim, .h2o_budget = 12, .h2o_n_sink = 2, .h2o_grace = 4});
  expect_evictor(cache, 12);
  EXPECT_EQ(cache.h2o_kept_bytes(), kHeads * 12 * kRowBytes);
  EXPECT_EQ(cache.full_seq_bytes(), kHeads * kTokens * kRowBytes);
  EXPECT_EQ(cache.compression_ratio(), kTokens / 12.0);
  EXPECT_EQ(cache.tokens_seen(), kHeads * kTokens);
  EXPECT_EQ(cache.tokens_kept(), 12);
}

TEST(seed_caches, TOVAKVCache_has_its_members) {
  TOVAKVCache cache(KVCacheConfig{.method = "tova", .head_dim = kDim, .tova_budget = 10});
  expect_evictor(cache, 10);
  EXPECT_EQ(cache.tova_kept_bytes(), kHeads * 10 * kRowBytes);
  EXPECT_EQ(cache.full_seq_bytes(), kHeads * kTokens * kRowBytes);
  EXPECT_EQ(cache.compression_ratio(), 3.0);
  EXPECT_EQ(cache.tokens_seen(), kHeads * kTokens);
  EXPECT_EQ(cache.tokens_kept(), 10);
}

TEST(seed_caches, SnapKVKVCache_has_its_members) {
  SnapKVKVCache cache(
      KVCacheConfig{.method = "snapkv", .head_dim = kDim, .snap_budget = 15, .snap_obs_window = 4, .snap_n_sink = 2});
  expect_evictor(cache, 15);
  EXPECT_EQ(cache.evicted_key_bytes(), kHeads * 15 * kRowBytes / 2);
  EXPECT_EQ(cache.evicted_value_bytes(), cache.evicted_key_bytes());
  EXPECT_EQ(cache.full_key_bytes(), kHeads * kTokens * kRowBytes / 2);
  EXPECT_EQ(cache.full_value_bytes(), cache.full_key_bytes());
  EXPECT_EQ(cache.tokens_kept(), kHeads * 15);
  EXPECT_EQ(cache.tokens_total(), kHeads * kTokens);
  EXPECT_EQ(cache.eviction_ratio(), 2.0);
  EXPECT_EQ(cache.keep_rate(), 0.5);
}

TEST(seed_caches, StreamingLLMKVCache_has_its_members) {
  StreamingLLMKVCache cache(
      KVCacheConfig{.method = "streaming_llm", .head_dim = kDim, .stream_n_sink = 3, .stream_window_size = 7});
  expect_evictor(cache, 10);
  EXPECT_EQ(cache.stream_kept_bytes(), kHeads * 10 * kRowBytes);
  EXPECT_EQ(cache.full_seq_bytes(), kHeads * kTokens * kRowBytes);
  EXPECT_EQ(cache.streaming_ratio(), 3.0);
  EXPECT_EQ(cache.tokens_seen(), kHeads * kTokens);
  EXPECT_EQ(cache.tokens_in_window(), 10);
  EXPECT_EQ(cache.tokens_kept(), 10);
}

template <class Cache>
void expect_vectors(Cache& cache, size_t bytes_per_pair) {
  const std::vector<float> k(64, 0.5f), v(64, 2.0f);
  EXPECT_EQ(cache.attend(k), std::vector<float>(64, 0.0f));
  for (int i = 1; i <= 3; ++i) {
    cache.append_key(k);
    cache.append_value(v);
    EXPECT_EQ(cache.memory_bytes(), static_cast<size_t>(i) * bytes_per_pair);
  }
  for (float x : cache.attend(k)) EXPECT_NEAR(x, 2.0f, 0.02f);
  cache.reset();
  EXPECT_EQ(cache.memory_bytes(), 0u);
}

TEST(seed_caches, TurboQuantKVCache_has_its_members) {
  TurboQuantKVCache mse(KVCacheConfig{.method = "turboquant_mse", .head_dim = 64});
  expect_vectors(mse, 16 + 2 + 64 + 2);
  TurboQuantKVCache prod(KVCacheConfig{.method = "turboquant_prod", .head_dim = 64});
  expect_vectors(prod, 8 + 8 + 4 + 64 + 2);
  EXPECT_THROW(TurboQuantKVCache(KVCacheConfig{.method = "qjl"}), QuantizerConfigError);
}

TEST(seed_caches, QJLKVCache_has_its_members) {
  QJLKVCache cache(KVCacheConfig{.method = "qjl", .head_dim = 64});
  expect_vectors(cache, 8 + 2 + 64 + 2);
}

TEST(seed_caches, SlidingWindowKVCache_has_its_members) {
  SlidingWindowKVCache cache(QJLKVCache(KVCacheConfig{.method = "qjl", .head_dim = 64}), 5);
  expect_vectors(cache, 8 + 2 + 64 + 2);
}

}  // namespace
}  // namespace veloxquant
