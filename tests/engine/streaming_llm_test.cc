// Sinks and a window: positions, memory, and positions inside the cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/kept_rows.h"
#include "support/sanitizer.h"
#include "veloxquant/errors.h"
#include "veloxquant/rope.h"

namespace veloxquant::test {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace veloxquant::test
