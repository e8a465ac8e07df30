// Sessions: the same logits as plain llama where nothing is compressed, the same bits for any number of threads, and
// what is left after a failure.
#include "hosts/llama/session.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "hosts/llama/plain.h"
#include "hosts/llama/score_rules.h"
#include "model/fixtures.h"

namespace veloxquant::llama {
namespace {

using test::RandomModel;
using ::testing::HasSubstr;

std::vector<float> copy(std::span<const float> x) { return {x.begin(), x.end()}; }

float largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// A random model, loaded.
class Tiny {
 public:
  explicit Tiny(const RandomModel& model) {
    model.write(folder_.file("model.gguf"));
    host_ = std::make_unique<LlamaHost>(HostOptions{.model = folder_.file("model.gguf"), .threads = 2});
  }
  LlamaHost& host() { return *host_; }

 private:
  test::TemporaryFolder folder_;
  std::unique_ptr<LlamaHost> host_;
};

/// Largest difference of any logit between an exact session and llama's f32 cache: a prompt of several calls, then
/// single tokens.
float difference_to_plain(LlamaHost& host, const std::vector<Token>& tokens, size_t steps) {
  Session session(host, parse_method("exact(dtype=f32)"));
  PlainRun plain(host, {.type = "f32", .flash_attention = false, .context = static_cast<int>(tokens.size())});
  const std::span<const Token> all(tokens);
  const size_t prompt = tokens.size() - steps;
  float largest = largest_difference(session.decode(all.first(prompt), Phase::prefill_last, Logits::all),
                                     plain.decode(all.first(prompt), Logits::all));
  for (size_t i = prompt; i < tokens.size(); ++i) {
    largest = std::max(
        largest, largest_difference(session.decode(all.subspan(i, 1), Phase::decode), plain.decode(all.subspan(i, 1))));
  }
  return largest;
}

TEST(ExactSession, equals_plain_llama_with_grouped_heads) {
  Tiny tiny({});
  EXPECT_LE(difference_to_plain(tiny.host(), test::text_tokens(tiny.host(), 316), 16), 1e-4F);
}

TEST(ExactSession, equals_plain_llama_with_alibi) {
  Tiny tiny({.architecture = "refact", .heads = 4, .kv_heads = 1});
  EXPECT_LE(difference_to_plain(tiny.host(), test::text_tokens(tiny.host(), 316), 16), 1e-4F);
}

TEST(ExactSession, heads_that_are_no_power_of_two_have_alibi_too) {
  Tiny tiny({.architecture = "refact", .embedding = 96, .heads = 6, .kv_heads = 3});
  EXPECT_LE(difference_to_plain(tiny.host(), test::text_tokens(tiny.host(), 100), 4), 1e-4F);
}

// Quantised weights blow any rounding up: only the distributions can be compared.
TEST(ExactSession, predicts_as_plain_llama_on_quantised_weights) {
  const auto host = test::load_packaged();
  const std::vector<Token> tokens = test::text_tokens(*host, 160);
  Session session(*host, parse_method("exact(dtype=f32)"));
  PlainRun plain(*host, {.type = "f16", .context = 160});
  const std::vector<float> ours = copy(session.decode(tokens, Phase::prefill_last, Logits::all));
  const std::vector<float> theirs = copy(plain.decode(tokens, Logits::all));
  const auto vocabulary = static_cast<size_t>(host->vocabulary());
  Scores scores;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    scores.add(log_softmax(std::span(theirs).subspan(i * vocabulary, vocabulary)),
               log_softmax(std::span(ours).subspan(i * vocabulary, vocabulary)), tokens[i + 1]);
  }
  RecordProperty("kl_mean", std::to_string(scores.kl_mean()));
  EXPECT_LT(scores.kl_mean(), 0.02);
  EXPECT_GT(scores.top1_agreement(), 0.9);
}

TEST(Session, logits_are_the_same_bits_for_one_two_and_five_threads) {
  const auto host = test::load_packaged();
  const std::vector<Token> tokens = test::text_tokens(*host, 60);
  for (const char* method : {"exact", "turboquant_rvq", "kivi"}) {
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 5}) {
      host->set_threads(threads);
      Session session(*host, parse_method(method));
      const std::span<const Token> all(tokens);
      std::vector<float> logits = copy(session.decode(all.first(57), Phase::prefill_last));
      for (size_t i = 57; i < tokens.size(); ++i) {
        const std::span<const float> row = session.decode(all.subspan(i, 1), Phase::decode);
        logits.insert(logits.end(), row.begin(), row.end());
      }
      results.push_back(std::move(logits));
    }
    EXPECT_EQ(results[0], results[1]) << method;
    EXPECT_EQ(results[0], results[2]) << method;
  }
}

// The first layer's keys and values do not depend on attention, so that its store shows the cut alone.
TEST(Session, the_cut_into_calls_does_not_show_in_the_store) {
  Tiny tiny({});
  const std::vector<Token> tokens = test::text_tokens(tiny.host(), 300);
  for (const char* method : {"exact", "turboquant_rvq", "kivi"}) {
    std::vector<std::vector<std::byte>> states;
    for (const int chunk : {7, 64, 256}) {
      Session session(tiny.host(), parse_method(method));
      session.set_chunk_tokens(chunk);
      session.decode(tokens, Phase::prefill_last);
      states.push_back(session.caches()[0].state());
    }
    EXPECT_EQ(states[0], states[1]) << method;
    EXPECT_EQ(states[0], states[2]) << method;
  }
}

TEST(Session, interleaved_sessions_do_not_see_each_other) {
  Tiny tiny({});
  const std::vector<Token> tokens = test::text_tokens(tiny.host(), 80);
  const std::span<const Token> all(tokens);
  Session alone(tiny.host(), parse_method("kivi"));
  alone.decode(all.first(40), Phase::prefill_last);
  const std::vector<float> expected = copy(alone.decode(all.subspan(40, 1), Phase::decode));

  Session first(tiny.host(), parse_method("kivi")), second(tiny.host(), parse_method("exact"));
  second.decode(all.subspan(30, 50), Phase::prefill_last);
  first.decode(all.first(40), Phase::prefill_last);
  second.decode(all.first(1), Phase::decode);
  EXPECT_EQ(copy(first.decode(all.subspan(40, 1), Phase::decode)), expected);
  EXPECT_EQ(first.position(), 41);
  EXPECT_EQ(second.position(), 51);
}

TEST(Session, the_trained_context_is_the_limit) {
  Tiny tiny({.context = 64});
  const std::vector<Token> tokens = test::text_tokens(tiny.host(), 65);
  Session session(tiny.host(), parse_method("exact"));
  EXPECT_THROW(session.decode(tokens, Phase::prefill_last), std::runtime_error);
  EXPECT_EQ(session.position(), 0);
  session.decode(std::span(tokens).first(64), Phase::prefill_last);
  EXPECT_THROW(session.decode(std::span(tokens).first(1), Phase::decode), std::runtime_error);
  EXPECT_EQ(session.position(), 64);
}

TEST(FailedCall, a_full_cache_is_said_and_the_session_goes_on_as_before) {
  Tiny tiny({});
  const std::vector<Token> tokens = test::text_tokens(tiny.host(), 300);
  const std::span<const Token> all(tokens);
  Session session(tiny.host(), parse_method("exact(capacity=280)")), undisturbed(tiny.host(), parse_method("exact"));
  session.decode(all.first(20), Phase::prefill_last);
  undisturbed.decode(all.first(20), Phase::prefill_last);
  try {
    session.decode(all.subspan(20), Phase::prefill_last);  // its second chunk does not fit
    FAIL() << "300 tokens in a cache of 280";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("280"));
  }
  EXPECT_EQ(session.position(), 20);
  for (int i = 0; i < session.caches().layers(); ++i) EXPECT_EQ(session.caches()[i].offset(), 20);
  EXPECT_EQ(copy(session.decode(all.subspan(20, 1), Phase::decode)),
            copy(undisturbed.decode(all.subspan(20, 1), Phase::decode)));
}

TEST(FailedCall, a_failure_inside_the_graph_reaches_the_caller_and_the_host_goes_on) {
  class Failing : public LayerCalls {
   public:
    void append(int, const NewRows&, const NewRows&) override {}
    void attend(int layer, const AttendIn&, const AttendOut&, int, int) override {
      if (layer == 1) throw std::runtime_error("no attention today");
    }
  } failing;
  Tiny tiny({.layers = 3});
  const std::vector<Token> tokens = test::text_tokens(tiny.host(), 10);
  try {
    const Turn turn{&failing, tokens, 0, Logits::none};
    tiny.host().compute(std::span(&turn, 1));
    FAIL() << "the exception was lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "no attention today");
  }
  Session session(tiny.host(), parse_method("exact"));
  EXPECT_EQ(session.decode(tokens, Phase::prefill_last).size(), static_cast<size_t>(tiny.host().vocabulary()));
}

TEST(FailedCall, a_cancelled_call_leaves_no_rows_in_any_layer) {
  std::atomic<bool> cancel = false;
  LlamaHost host({.model = test::model_path(), .threads = 1, .cancel = &cancel});
  const std::vector<Token> tokens = test::text_tokens(host, 2000);
  Session session(host, parse_method("turboquant_rvq"));
  session.decode(std::span(tokens).first(5), Phase::prefill_last);
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    cancel = true;
  });
  EXPECT_THROW(session.decode(tokens, Phase::prefill_last), Cancelled);
  stopper.join();
  EXPECT_EQ(session.position(), 5);
  for (int i = 0; i < session.caches().layers(); ++i) EXPECT_EQ(session.caches()[i].offset(), 5) << i;
  cancel = false;
  session.decode(std::span(tokens).first(1), Phase::decode);
  EXPECT_EQ(session.position(), 6);
}

}  // namespace
}  // namespace veloxquant::llama
