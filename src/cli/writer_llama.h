// What generate and its chat share: writing an answer, and what it took.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <string>

#include "hosts/llama/sampler.h"
#include "hosts/llama/session.h"

namespace veloxquant::cli {

struct Figures {
  size_t prompt_tokens = 0, generated_tokens = 0;
  int steps = 0;  ///< calls of one generated token; the last token needs none
  double prompt_seconds = 0, step_seconds = 0;
  Figures& operator+=(const Figures& other);
};

/// Set by Ctrl-C.
extern std::atomic<bool> interrupted;
/// The next Ctrl-C ends the text that is being written; the one after it ends the program.
void catch_interrupt();

/// Writes answers of one session to standard output.
class Writer {
 public:
  Writer(llama::Session& session, float temperature, uint32_t seed) : session_(session), sampler_(temperature, seed) {}

  /// Feeds the prompt, then prints until `limit` tokens, the model's end of text or Ctrl-C.
  Figures run(std::span<const llama::Token> prompt, int limit);
  /// The text of the last answer.
  const std::string& text() const { return text_; }
  /// False where Ctrl-C came before the session had been fed the prompt.
  bool prompt_fed() const { return prompt_fed_; }
  /// Its last token, where the session has not been fed it.
  std::optional<llama::Token> unfed() const { return unfed_; }

 private:
  void show(const std::string& text);

  llama::Session& session_;
  llama::Sampler sampler_;
  std::string text_;
  bool prompt_fed_ = false;
  std::optional<llama::Token> unfed_;
};

std::string stats_text(llama::Session& session, const Figures& figures);

/// A conversation at the prompt, in one session's cache.
struct ChatOptions {
  std::string method;
  std::vector<std::string> sets;
  float temperature = 0;
  uint32_t seed = 0;
  int most_tokens = 0;  ///< of an answer
};
void chat(llama::LlamaHost& host, const ChatOptions& options);

}  // namespace veloxquant::cli
