// Several sessions on one host: interleaved, together in one call, with recurrent layers, and when one of them fails.
#include <gmock/gmock.h>

#include "hosts/llama/session.h"
#include "model/architectures.h"

namespace veloxquant::llama {
namespace {

using test::Metadata;
using ::testing::HasSubstr;

std::vector<float> copy(std::span<const float> x) { return {x.begin(), x.end()}; }

HostOptions with_sequences(HostOptions options, int sequences) {
  options.sequences = sequences;
  return options;
}

/// Attention in layer 0 and recurrence in layer 1.
HostOptions hybrid(int sequences) {
  const std::vector<uint32_t> heads = {4, 0};
  return with_sequences(test::random_model("granitehybrid", {{"attention.head_count", heads},
                                                             {"attention.head_count_kv", std::vector<uint32_t>{2, 0}}}),
                        sequences);
}

/// What a session of its own on a host of its own says after a prompt and two more tokens.
std::vector<float> alone(const HostOptions& options, const char* method, std::span<const Token> tokens) {
  LlamaHost host(options);
  Session session(host, parse_method(method));
  const size_t prompt = tokens.size() - 2;
  session.decode(tokens.first(prompt), Phase::prefill_last);
  std::vector<float> logits = copy(session.decode(tokens.subspan(prompt, 1), Phase::decode));
  const std::vector<float> last = copy(session.decode(tokens.subspan(prompt + 1, 1), Phase::decode));
  logits.insert(logits.end(), last.begin(), last.end());
  return logits;
}

struct Lane {
  const char* method;
  std::vector<Token> tokens;
};

std::vector<Lane> lanes() {
  const std::vector<Token> tokens = test::random_tokens(300);
  const auto cut = [&](int begin, int count) {
    return std::vector<Token>(tokens.begin() + begin, tokens.begin() + begin + count);
  };
  return {{"exact(dtype=f32)", cut(0, 90)}, {"kivi(group=8,residual=16)", cut(40, 33)}, {"exact", cut(7, 150)}};
}

/// Prompts together, then two tokens together.
std::vector<std::vector<float>> together(LlamaHost& host, const std::vector<Lane>& lanes) {
  std::vector<std::unique_ptr<Session>> sessions;
  for (const Lane& lane : lanes) sessions.push_back(std::make_unique<Session>(host, parse_method(lane.method)));
  std::vector<std::vector<float>> logits(lanes.size());
  const auto feed = [&](auto&& part, Phase phase, bool keep) {
    std::vector<SessionTurn> turns;
    for (size_t i = 0; i < lanes.size(); ++i) {
      turns.push_back({sessions[i].get(), part(std::span<const Token>(lanes[i].tokens)), phase, Logits::last});
    }
    decode_together(turns);
    for (size_t i = 0; i < lanes.size() && keep; ++i) {
      logits[i].insert(logits[i].end(), sessions[i]->logits().begin(), sessions[i]->logits().end());
    }
  };
  feed([](std::span<const Token> t) { return t.first(t.size() - 2); }, Phase::prefill_last, false);
  feed([](std::span<const Token> t) { return t.subspan(t.size() - 2, 1); }, Phase::decode, true);
  feed([](std::span<const Token> t) { return t.last(1); }, Phase::decode, true);
  return logits;
}

TEST(Together, sessions_of_different_methods_in_one_call_equal_single_runs) {
  for (const char* architecture : {"llama", "gemma2"}) {
    const HostOptions options = test::random_model(architecture);
    LlamaHost host(with_sequences(options, 3));
    const std::vector<std::vector<float>> logits = together(host, lanes());
    for (size_t i = 0; i < lanes().size(); ++i) {
      EXPECT_LT(test::normalised_error(alone(options, lanes()[i].method, lanes()[i].tokens), logits[i]), 1e-9)
          << architecture << " " << lanes()[i].method;
    }
  }
}

TEST(Together, more_sessions_than_llama_takes_at_once_are_cut) {
  const HostOptions options = test::random_model("llama");
  LlamaHost host(with_sequences(options, 2));
  const std::vector<std::vector<float>> logits = together(host, lanes());
  for (size_t i = 0; i < lanes().size(); ++i) {
    EXPECT_LT(test::normalised_error(alone(options, lanes()[i].method, lanes()[i].tokens), logits[i]), 1e-9) << i;
  }
}

TEST(Together, recurrent_states_of_several_sessions_stay_apart) {
  LlamaHost host(hybrid(3));
  ASSERT_TRUE(host.recurrent());
  const std::vector<std::vector<float>> logits = together(host, lanes());
  for (size_t i = 0; i < lanes().size(); ++i) {
    EXPECT_LT(test::normalised_error(alone(hybrid(1), lanes()[i].method, lanes()[i].tokens), logits[i]), 1e-9) << i;
  }
}

TEST(Together, a_session_of_another_host_or_one_twice_is_refused) {
  LlamaHost host(with_sequences(test::random_model("llama"), 2)), other(test::random_model("llama"));
  Session first(host, parse_method("exact")), second(other, parse_method("exact"));
  const std::vector<Token> tokens = test::random_tokens(4);
  const std::vector<SessionTurn> twice = {{&first, tokens}, {&first, tokens}};
  EXPECT_THROW(decode_together(twice), std::invalid_argument);
  const std::vector<SessionTurn> foreign = {{&first, tokens}, {&second, tokens}};
  EXPECT_THROW(decode_together(foreign), std::invalid_argument);
  EXPECT_EQ(first.position(), 0);
}

TEST(Together, when_one_session_fails_all_stand_as_before) {
  LlamaHost host(with_sequences(test::random_model("llama"), 2));
  const std::vector<Token> tokens = test::random_tokens(200);
  const std::span<const Token> all(tokens);
  Session good(host, parse_method("exact")), full(host, parse_method("exact(capacity=50)")),
      undisturbed(host, parse_method("exact"));
  for (Session* session : {&good, &full, &undisturbed}) session->decode(all.first(20), Phase::prefill_last);
  const std::vector<SessionTurn> turns = {{&good, all.subspan(20, 100), Phase::prefill_last},
                                          {&full, all.subspan(20, 100), Phase::prefill_last}};
  try {
    decode_together(turns);
    FAIL() << "120 tokens in a cache of 50";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("50"));
  }
  for (Session* session : {&good, &full}) {
    EXPECT_EQ(session->position(), 20);
    for (int i = 0; i < session->caches().layers(); ++i) EXPECT_EQ(session->caches()[i].offset(), 20);
  }
  EXPECT_EQ(copy(good.decode(all.subspan(20, 1), Phase::decode)),
            copy(undisturbed.decode(all.subspan(20, 1), Phase::decode)));
}

TEST(Recurrent, sessions_interleave_and_a_new_one_starts_empty) {
  const std::vector<Token> tokens = test::random_tokens(90);
  const std::span<const Token> all(tokens);
  LlamaHost host(hybrid(2));
  Session first(host, parse_method("exact"));
  std::vector<float> second_alone;
  {
    Session second(host, parse_method("exact"));
    second.decode(all.subspan(5, 40), Phase::prefill_last);
    first.decode(all.first(88), Phase::prefill_last);
    second_alone = copy(second.decode(all.first(1), Phase::decode));
    EXPECT_THROW(Session(host, parse_method("exact")), std::runtime_error);
  }
  Session third(host, parse_method("exact"));
  third.decode(all.subspan(5, 40), Phase::prefill_last);
  EXPECT_EQ(copy(third.decode(all.first(1), Phase::decode)), second_alone);
  std::vector<float> logits = copy(first.decode(all.subspan(88, 1), Phase::decode));
  const std::vector<float> last = copy(first.decode(all.subspan(89, 1), Phase::decode));
  logits.insert(logits.end(), last.begin(), last.end());
  EXPECT_LT(test::normalised_error(alone(hybrid(1), "exact", tokens), logits), 1e-9);
}

TEST(Recurrent, a_failed_call_closes_the_session_unless_it_was_the_first) {
  LlamaHost host(hybrid(2));
  const std::vector<Token> tokens = test::random_tokens(100);
  const std::span<const Token> all(tokens);
  Session session(host, parse_method("exact(capacity=50)")), other(host, parse_method("exact"));
  other.decode(all.first(30), Phase::prefill_last);
  EXPECT_THROW(session.decode(all, Phase::prefill_last), std::runtime_error);
  EXPECT_EQ(session.position(), 0);
  session.decode(all.first(40), Phase::prefill_last);  // it starts anew
  EXPECT_THROW(session.decode(all.first(20), Phase::prefill_last), std::runtime_error);
  try {
    session.decode(all.first(1), Phase::decode);
    FAIL() << "the state has moved on";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("recurrent layers"));
  }
  other.decode(all.subspan(30, 1), Phase::decode);
  EXPECT_EQ(other.position(), 31);
}

TEST(Position, the_context_of_the_host_is_a_limit) {
  HostOptions options = test::random_model("gpt2");
  options.context = 40;
  LlamaHost host(options);
  Session session(host, parse_method("exact"));
  const std::vector<Token> tokens = test::random_tokens(41);
  try {
    session.decode(tokens, Phase::prefill_last);
    FAIL() << "41 tokens";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("40 positions the host was made for"));
  }
  session.decode(std::span(tokens).first(40), Phase::prefill_last);
}

TEST(Position, learned_positions_end_at_the_trained_context) {
  LlamaHost host(test::random_model("gpt2", {{"context_length", 64U}}));
  Session session(host, parse_method("exact"));
  const std::vector<Token> tokens = test::random_tokens(65);
  EXPECT_THROW(session.decode(tokens, Phase::prefill_last), std::runtime_error);
  session.decode(std::span(tokens).first(64), Phase::prefill_last);
  EXPECT_THROW(session.decode(std::span(tokens).first(1), Phase::decode), std::runtime_error);
}

}  // namespace
}  // namespace veloxquant::llama
