// Memory: what the formulas of the methods say, what the allocator gave, and what stays while a cache grows.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "core/half.h"
#include "support/sanitizer.h"
#include "support/tensors.h"
#include "veloxquant/cache_set.h"
#include "veloxquant/codecs.h"

namespace veloxquant::test {
namespace {

constexpr int kHeads = sized(8, 1);
constexpr LayerShape kShape{kHeads, kHeads, 128, 128, 0, DType::f16};

KVCache filled(const std::string& method, const LayerShape& shape, int tokens, int chunk = 512) {
  KVCache cache(parse_method(method), shape);
  const Sequences data(shape, 1, chunk);
  for (int left = tokens; left > 0; left -= chunk) {
    const Range r{0, std::min(left, chunk)};
    cache.append(data.keys(r), data.values(r));
  }
  cache.commit();
  return cache;
}

double telemetry(const KVCache& cache, std::string_view name) {
  const CacheStats stats = cache.peek();
  for (const Telemetry& t : cache.method().def->telemetry) {
    if (t.name == name) return t.value(stats);
  }
  ADD_FAILURE() << "no telemetry " << name;
  return 0;
}

// One storage block per stream and side: 64 rows of a row-grain codec, one block of units, or 64 exact rows.
size_t one_block_per_stream_and_side(const LayerShape& s, const MethodSpec& method) {
  const Recipe recipe = build_recipe(method, {s, s.input, 42});
  size_t bytes = 0;
  for (Side side : kSides) {
    const Codec& codec = side == Side::key ? *recipe.key : *recipe.value;
    bytes += std::max(codec.format().block_bytes(), raw_rows(s.input, codec.dim())->format().block_bytes());
  }
  return bytes * static_cast<size_t>(s.kv_heads);
}

TEST(Bytes, nbytes_at_4096_tokens_within_the_tolerance_for_every_method_and_head_size) {
  for (const char* method : {"exact", "kivi", "kivi(bits=4)", "kivi(flush_rule=aligned_window)", "turboquant_rvq",
                             "turboquant_rvq(value_codec=turboquant_mse)", "turboquant_rvq(value_codec=int8)"}) {
    for (int dim : {64, 80, 96, 128, 256}) {
      if (kSanitized && dim != 80) continue;
      for (int tokens : {4096, 4159}) {
        const LayerShape shape{2, 2, dim, dim, 0, DType::f16};
        KVCache cache = filled(method, shape, tokens);
        const double allowed = 1.03 * static_cast<double>(cache.used_bytes()) +
                               static_cast<double>(one_block_per_stream_and_side(shape, cache.method()));
        EXPECT_LE(static_cast<double>(cache.nbytes()), allowed) << method << " D=" << dim << " n=" << tokens;
        EXPECT_GE(cache.nbytes(), cache.used_bytes());
      }
    }
  }
}

TEST(Bytes, kivi_equals_its_formula) {
  for (int tokens : {127, 128, 700, 4096}) {
    for (int bits : {2, 3, 4}) {
      KVCache cache = filled(fmt::format("kivi(bits={})", bits), kShape, tokens);
      const size_t pk_group = bits == 3 ? 12 : static_cast<size_t>(32 * bits / 8);
      const size_t pk_row = bits == 3 ? 48 : static_cast<size_t>(128 * bits / 8);
      const auto key_frontier = static_cast<size_t>(128 * (tokens / 128));
      const auto value_frontier = static_cast<size_t>(std::max(0, tokens - 128));
      const size_t key = kHeads * (key_frontier / 32) * 128 * (pk_group + 4);
      const size_t value = kHeads * value_frontier * (pk_row + 4 * 4);
      const size_t residual = 2 * 128 * kHeads * (2 * static_cast<size_t>(tokens) - key_frontier - value_frontier);
      EXPECT_EQ(cache.used_bytes(), key + value + residual);
      EXPECT_EQ(telemetry(cache, "compressed_key_bytes"), static_cast<double>(key));
      EXPECT_EQ(telemetry(cache, "compressed_value_bytes"), static_cast<double>(value));
      EXPECT_EQ(telemetry(cache, "residual_fp16_bytes"), static_cast<double>(residual));
    }
  }
}

TEST(Bytes, kivi_ratio_is_that_of_the_specification) {
  KVCache cache(parse_method("kivi"), kShape);
  EXPECT_EQ(telemetry(cache, "effective_compression_ratio"), 1.0);
  EXPECT_EQ(telemetry(filled("kivi", kShape, 127), "effective_compression_ratio"), 1.0);
  EXPECT_NEAR(telemetry(filled("kivi", kShape, 4096), "effective_compression_ratio"), 4.995, 0.2);
  EXPECT_NEAR(telemetry(filled("kivi(flush_rule=aligned_window)", kShape, 4096), "effective_compression_ratio"), 4.70,
              0.01);
  if (kSanitized) return;  // 128,000 tokens
  EXPECT_NEAR(telemetry(filled("kivi", {1, 1, 128, 128, 0, DType::f16}, 128 * 1000), "effective_compression_ratio"),
              5.33, 0.01);
}

TEST(Bytes, kivi_frontiers_of_single_steps) {
  const LayerShape shape{1, 1, 64, 64, 0, DType::f16};
  const Sequences data(shape, 1, 200);
  KVCache cache(parse_method("kivi(residual=32)"), shape);
  data.feed(cache, {32});
  data.feed(cache, ones(168), 32);
  const CacheStats stats = cache.peek();
  EXPECT_EQ(stats.key.exact_rows, 8);
  EXPECT_EQ(stats.value.exact_rows, 32);
  const auto k = cache.decode(Side::key);
  for (int r = 0; r < 200; ++r) {
    double error = 0;
    for (int c = 0; c < 64; ++c)
      error += std::abs(double{k[static_cast<size_t>(r * 64 + c)]} - double{data.k[static_cast<size_t>(r * 64 + c)]});
    EXPECT_EQ(error > 0, r < 192) << "row " << r;
  }
}

TEST(Bytes, a_residual_beyond_the_length_is_an_fp16_cache) {
  const LayerShape shape{2, 4, 80, 80, 0, DType::f16};
  const Sequences data(shape, 1, 300);
  KVCache kivi(parse_method("kivi(residual=320)"), shape), exact(parse_method("exact"), shape);
  EXPECT_EQ(data.feed(kivi, {200, 1, 99}), data.feed(exact, {200, 1, 99}));
  EXPECT_EQ(kivi.used_bytes(), exact.used_bytes());
}

TEST(Bytes, turboquant_rvq_equals_its_formula_and_its_payload) {
  for (int bits : {1, 2, 3, 4}) {
    KVCache cache = filled(fmt::format("turboquant_rvq(bits={})", bits), kShape, 700);
    const size_t key = kHeads * 700 * static_cast<size_t>(2 * (128 * bits / 8) + 2);
    EXPECT_EQ(telemetry(cache, "compressed_key_bytes"), static_cast<double>(key));
    EXPECT_EQ(cache.used_bytes(), key + kHeads * 700 * 256);
    const size_t counts = kHeads * 2 * sizeof(int32_t) + 3 * sizeof(int32_t) + 2 * sizeof(uint32_t) + 20;
    const size_t signature = cache.state().size() - cache.used_bytes() - counts;
    EXPECT_GT(signature, 0u);
    EXPECT_LT(signature, 400u);
  }
}

TEST(Bytes, turboquant_rvq_trimmed_and_appended_again_equals_never_trimmed) {
  const LayerShape shape{2, 2, 96, 96, 0, DType::f32};
  const Sequences data(shape, 1, 300);
  KVCache trimmed(parse_method("turboquant_rvq"), shape), straight(parse_method("turboquant_rvq"), shape);
  data.feed(straight, {300});
  for (int removed : {1, 63, 64, 65, 299}) {
    if (trimmed.offset() == 0) data.feed(trimmed, {300});
    EXPECT_EQ(trimmed.trim(removed), removed);
    data.feed(trimmed, {removed}, 300 - removed);
    EXPECT_EQ(trimmed.state(), straight.state()) << removed;
  }
}

TEST(Bytes, a_cache_set_counts_all_layers_once_and_frees_everything) {
  const std::vector<LayerShape> layers(3, LayerShape{2, 4, 64, 64, 0, DType::f32});
  CacheSet set(parse_method("kivi"), layers);
  const Sequences data(layers[0], 1, 512);
  size_t peak_staging = 0;
  for (int call = 0; call < 8; ++call) {
    for (int i = 0; i < set.layers(); ++i) set[i].append(data.keys({0, 512}), data.values({0, 512}));
    peak_staging = std::max(peak_staging, set.staging_bytes());
    set.commit();
    EXPECT_EQ(set.staging_bytes(), 0u);
  }
  EXPECT_EQ(peak_staging / 3 / 512, 2u * 2 * 64 * 4 + 0) << "fp32 rows of one call, nothing else";
  const size_t nbytes = set.nbytes();
  EXPECT_GE(nbytes, set.arena().allocated_bytes);
  EXPECT_LE(nbytes - set.arena().allocated_bytes, nbytes / 33) << "lists of blocks are small";
  EXPECT_LE(set.arena().peak_bytes, set.arena().allocated_bytes * 11 / 10) << "nothing is copied as the store grows";
  const KVCache copy = set[0].copy();
  EXPECT_EQ(set.trim(5), 5);
  EXPECT_EQ(set.trim(100000), 0) << "all layers or none";
  EXPECT_EQ(set.offset(), 4091);
  set.reset();
  EXPECT_GT(set.arena().allocated_bytes, 0u) << "the copy lives on";
}

TEST(Bytes, resident_rows_stay_flat_while_decoding) {
  const LayerShape shape{1, 1, 64, 64, 0, DType::f16};
  KVCache cache(parse_method("kivi(group=8,residual=16)"), shape);
  const Sequences data(shape, 1, 516);
  data.feed(cache, {16});
  for (int t = 16; t < 516; ++t) {
    data.step(cache, {t, t + 1});
    ASSERT_LE(cache.peek().key.exact_rows, 16 + 8 - 1);
    ASSERT_EQ(cache.peek().value.exact_rows, 16);
  }
}

}  // namespace
}  // namespace veloxquant::test
