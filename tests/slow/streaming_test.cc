// A text far longer than the model's context through one session of streaming_llm: memory, speed, positions and quality
// stay what they were.
#ifdef VQ_HAVE_LLAMA

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "hosts/llama/session.h"
#include "veloxquant/codecs.h"

namespace veloxquant::llama {
namespace {

constexpr int kTokens = 50000, kBlock = 5000, kSinks = 4, kWindow = 1020;

TEST(Streaming, fifty_thousand_tokens_in_one_session) {
  const std::string path = std::string(VQ_SHARED_DIR) + "/data/wikitext2_test.txt";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "NO TEXT at " << path;
  const char* model = std::getenv("VQ_MODEL");
  if (!model) GTEST_SKIP() << "NO MODEL: VQ_MODEL is not set";
  LlamaHost host({.model = model, .threads = 0});
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::vector<Token> tokens = host.tokenize(text, false);
  ASSERT_GT(tokens.size(), static_cast<size_t>(kTokens));
  ASSERT_LT(host.trained_context(), kTokens / 4) << "the text is no longer than the model's context";

  Session session(host, parse_method(fmt::format("streaming_llm(window={},positions=cache)", kWindow)));
  std::vector<double> perplexity, seconds;
  size_t bytes = 0;
  const auto vocabulary = static_cast<size_t>(host.vocabulary());
  for (int at = 0; at < kTokens; at += kBlock) {
    const auto start = std::chrono::steady_clock::now();
    double nats = 0;
    for (int chunk = at; chunk < at + kBlock; chunk += 250) {
      const std::span<const Token> part(tokens.data() + chunk, 250);
      const std::span<const float> logits = session.decode(part, Phase::decode, Logits::all);
      for (size_t i = 0; i < part.size(); ++i) {
        const float* row = logits.data() + i * vocabulary;
        double max = -1e30, sum = 0;
        for (size_t v = 0; v < vocabulary; ++v) max = std::max(max, double{row[v]});
        for (size_t v = 0; v < vocabulary; ++v) sum += std::exp(row[v] - max);
        nats += max + std::log(sum) - row[tokens[static_cast<size_t>(chunk) + i + 1]];
      }
    }
    perplexity.push_back(std::exp(nats / kBlock));
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    const size_t now = session.caches().nbytes();
    fmt::print("tokens {:5}..{:5}: perplexity {:6.2f}, {:5.1f} tokens/s, {} bytes\n", at, at + kBlock,
               perplexity.back(), kBlock / seconds.back(), now);
    std::fflush(stdout);
    // The window may begin inside a block or at its start.
    const LayerShape& shape = host.layers()[0];
    constexpr size_t kBlockHeader = 64;  // and less
    const size_t rows = static_cast<size_t>(2 * kExactBlockRows * (shape.dim_k + shape.dim_v)) + 2 * kBlockHeader;
    const size_t block = rows * static_cast<size_t>(shape.kv_heads) * host.layers().size();
    if (at > 0) {
      EXPECT_LE(now, bytes + block);
      EXPECT_GE(now + block, bytes);
    }
    bytes = now;
    EXPECT_EQ(session.position(), at + kBlock);
    for (int layer : {0, session.caches().layers() - 1}) {
      KVCache& cache = session.caches()[layer];
      const std::vector<int32_t> positions = cache.positions(0, 0);
      ASSERT_EQ(positions.size(), static_cast<size_t>(kSinks + kWindow));
      for (int i = 0; i < kSinks; ++i) EXPECT_EQ(positions[static_cast<size_t>(i)], i);
      for (int i = 0; i < kWindow; ++i) {
        EXPECT_EQ(positions[static_cast<size_t>(kSinks + i)], at + kBlock - kWindow + i);
      }
    }
  }
  // Texts differ from block to block; a model that lost its sinks or its positions would be off by factors.
  double later = 0;
  for (size_t i = 2; i < perplexity.size(); ++i) later = std::max(later, perplexity[i]);
  EXPECT_LT(later, 2 * std::max(perplexity[0], perplexity[1]));
}

}  // namespace
}  // namespace veloxquant::llama

#endif
