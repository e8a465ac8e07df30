// LongRoPE: llama chooses the RoPE factors by the size of its context; ours must be those of the session's.
#include <gtest/gtest.h>

#include "hosts/llama/plain.h"
#include "hosts/llama/session.h"
#include "model/architectures.h"

namespace veloxquant::llama {
namespace {

constexpr int kOriginal = 300;  // llama's contexts are multiples of 256

HostOptions model(const char* architecture, int context) {
  HostOptions options =
      test::random_model(architecture, {{"context_length", 4096U}, {"rope.scaling.original_context_length", 300U}});
  options.context = context;
  return options;
}

std::vector<float> ours(LlamaHost& host, std::span<const Token> tokens) {
  Session session(host, parse_method("exact(dtype=f32)"));
  const std::span<const float> rows = session.decode(tokens, Phase::prefill_last, Logits::all);
  return {rows.begin(), rows.end()};
}

std::vector<float> plain(LlamaHost& host, std::span<const Token> tokens, int context) {
  PlainRun run(host, {.type = "f32", .flash_attention = false, .context = context});
  const std::span<const float> rows = run.decode(tokens, Logits::all);
  return {rows.begin(), rows.end()};
}

TEST(LongRope, factors_are_those_of_the_sessions_context) {
  const std::vector<Token> tokens = test::random_tokens(150);
  for (const char* architecture : {"phi3", "phimoe"}) {
    LlamaHost short_host(model(architecture, 200)), long_host(model(architecture, 4000));
    EXPECT_EQ(short_host.original_context(), 0);
    EXPECT_EQ(long_host.original_context(), kOriginal);
    // The model of the short host is as the file says: llama itself chooses by the context.
    const std::vector<float> plain_short = plain(short_host, tokens, 200), plain_long = plain(short_host, tokens, 512);
    EXPECT_GT(test::normalised_error(plain_long, plain_short), 1e-4) << architecture;
    EXPECT_LT(test::normalised_error(plain_short, ours(short_host, tokens)), 1e-9) << architecture;
    EXPECT_LT(test::normalised_error(plain_long, ours(long_host, tokens)), 1e-9) << architecture;
    EXPECT_LT(test::normalised_error(plain_long, plain(long_host, tokens, 200)), 1e-9) << architecture;
  }
}

TEST(LongRope, the_trained_context_is_what_counts_where_none_is_given) {
  LlamaHost host(model("phi3", 0));
  EXPECT_EQ(host.original_context(), kOriginal);
  EXPECT_EQ(host.context(), 4096);
}

}  // namespace
}  // namespace veloxquant::llama
