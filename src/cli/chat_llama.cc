// A conversation: the context stays in the session's cache from message to message, compressed.
#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>

#include "cli/app.h"
#include "cli/writer_llama.h"
#include "core/text.h"
#include "veloxquant/errors.h"
#include "veloxquant/registry.h"

namespace veloxquant::cli {
namespace {

using llama::ChatMessage;
using llama::LlamaHost;
using llama::Session;
using llama::Token;

constexpr std::string_view kHelp =
    "/stats          tokens, speeds and bytes\n"
    "/method [M]     the method, or another one from here on: the conversation so far is computed anew\n"
    "/save FILE      not there yet: the cache has no snapshots on disk\n"
    "/quit           end (as the end of the input does)\n"
    "Ctrl-C ends an answer; a second one in the same answer ends the program.\n";

class Conversation {
 public:
  Conversation(LlamaHost& host, const ChatOptions& options) : host_(host), options_(options) {
    start(options.method, options.sets);
  }

  void say(const std::string& message) {
    messages_.push_back({"user", message});
    try {
      answer(host_.chat_text(messages_));
    } catch (const std::exception&) {
      messages_.pop_back();  // the conversation stands as before the message
      throw;
    }
    messages_.push_back({"assistant", writer_->text()});
  }

  /// Throws QuantizerConfigError and changes nothing.
  void start(const std::string& method, std::span<const std::string> sets) {
    auto session = std::make_unique<Session>(host_, parse_method(method, sets));
    writer_ = std::make_unique<Writer>(*session, options_.temperature, options_.seed);
    session_ = std::move(session);
    method_ = method;
    fed_ = "";
    unfed_.reset();
    figures_ = {};
  }

  const std::string& method() const { return method_; }
  std::string stats() { return stats_text(*session_, figures_); }

 private:
  // The cache holds `fed_`. What a template makes of the longer conversation goes on from there, or it does not (it may
  // trim what was said): then all of it is computed anew.
  void answer(const std::string& text) {
    if (!fed_ || !text.starts_with(*fed_) || session_->closed()) {
      const std::vector<std::string> sets = method_ == options_.method ? options_.sets : std::vector<std::string>();
      const Figures before = figures_;
      start(method_, sets);
      figures_ = before;
    }
    std::vector<Token> prompt;
    if (unfed_) prompt.push_back(*unfed_);
    const std::vector<Token> rest = host_.tokenize(std::string_view(text).substr(fed_->size()), true, fed_->empty());
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    const int room = session_->room() - static_cast<int>(prompt.size());
    if (room < 1) {
      throw std::runtime_error(
          fmt::format("the context is full: {} tokens stand in it and {} come with the message; "
                      "--method 'streaming_llm' --set positions=cache has no end",
                      session_->position(), prompt.size()));
    }
    fed_.reset();
    figures_ += writer_->run(prompt, std::min(room, options_.most_tokens));
    if (writer_->prompt_fed()) fed_ = text + writer_->text();
    unfed_ = writer_->unfed();
  }

  LlamaHost& host_;
  ChatOptions options_;
  std::string method_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Writer> writer_;
  std::vector<ChatMessage> messages_;
  std::optional<std::string> fed_;  ///< nothing: a call was left in between
  std::optional<Token> unfed_;
  Figures figures_;
};

/// False: the conversation ends.
bool command(Conversation& conversation, std::string_view line) {
  const size_t blank = line.find(' ');
  const std::string_view name = line.substr(0, blank);
  const std::string argument(blank == std::string_view::npos ? std::string_view() : trimmed(line.substr(blank)));
  if (name == "/quit") return false;
  if (name == "/help") {
    print(kHelp);
  } else if (name == "/stats") {
    print(conversation.stats());
  } else if (name == "/method") {
    if (!argument.empty()) conversation.start(argument, {});
    print(conversation.method() + "\n");
  } else if (name == "/save") {
    throw UsageError("/save: the cache can't be written to disk yet");
  } else {
    throw UsageError(fmt::format("{}: unknown; there are /stats, /method, /save, /help and /quit", name));
  }
  return true;
}

}  // namespace

void chat(LlamaHost& host, const ChatOptions& options) {
  if (!host.has_chat_template()) throw UsageError(fmt::format("--chat: {} has no chat template", host.path()));
  Conversation conversation(host, options);
  const bool asks = isatty(STDIN_FILENO) != 0;
  for (std::string line;;) {
    if (asks) print("> ");
    flush_output();
    if (!std::getline(std::cin, line)) break;
    const std::string text(trimmed(line));
    if (text.empty()) continue;
    catch_interrupt();
    try {
      if (text[0] != '/') {
        conversation.say(text);
      } else if (!command(conversation, text)) {
        break;
      }
    } catch (const std::exception& error) {  // of one line: the conversation goes on
      flush_output();
      fmt::print(stderr, "veloxquant: {}\n", error.what());
    }
  }
}

}  // namespace veloxquant::cli
