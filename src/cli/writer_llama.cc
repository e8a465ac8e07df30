// Writing answers of a model.
#include "cli/writer_llama.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include "cli/output.h"
#include "hosts/llama/text_rules.h"

namespace veloxquant::cli {

using llama::Token;
using Clock = std::chrono::steady_clock;

std::atomic<bool> interrupted = false;

void catch_interrupt() {
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

namespace {

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Resident memory of this process, as the system counts it.
size_t process_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

double per_second(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

}  // namespace

Figures& Figures::operator+=(const Figures& other) {
  prompt_tokens += other.prompt_tokens;
  generated_tokens += other.generated_tokens;
  steps += other.steps;
  prompt_seconds += other.prompt_seconds;
  step_seconds += other.step_seconds;
  return *this;
}

Figures Writer::run(std::span<const Token> prompt, int limit) {
  Figures figures;
  figures.prompt_tokens = prompt.size();
  text_.clear();
  unfed_.reset();
  prompt_fed_ = false;
  llama::Utf8Stream characters;
  try {
    Clock::time_point start = Clock::now();
    std::span<const float> logits = session_.decode(prompt, Phase::prefill_last);
    prompt_fed_ = true;
    figures.prompt_seconds = seconds_since(start);
    for (;;) {
      const Token token = sampler_.pick(logits);
      if (session_.host().ends_text(token)) break;
      ++figures.generated_tokens;
      show(characters.push(session_.host().piece(token)));
      unfed_ = token;
      if (static_cast<int>(figures.generated_tokens) == limit || interrupted) break;
      start = Clock::now();
      logits = session_.decode(std::span(&token, 1), Phase::decode);
      unfed_.reset();
      figures.step_seconds += seconds_since(start);
      ++figures.steps;
    }
  } catch (const llama::Cancelled&) {  // Ctrl-C inside a call
  }
  show(characters.finish());
  print("\n");
  flush_output();
  return figures;
}

void Writer::show(const std::string& text) {
  text_ += text;
  print(text);
  flush_output();
}

std::string stats_text(llama::Session& session, const Figures& figures) {
  CacheSet& caches = session.caches();
  const size_t resident = caches.nbytes(), used = caches.used_bytes(), process = process_bytes();
  const ArenaStats arena = caches.arena();
  size_t fp16 = 0;
  for (int i = 0; i < caches.layers(); ++i) {
    const CacheStats stats = caches[i].peek();
    fp16 += stats.key.fp16_bytes + stats.value.fp16_bytes;
  }
  const auto count = [](size_t bytes) {
    return fmt::format("{} ({} bytes)", bytes_text(static_cast<double>(bytes)), bytes);
  };
  return fmt::format(
      "prompt: {} tokens, {:.1f} tokens/s\n"
      "generated: {} tokens, {:.1f} tokens/s\n"
      "cache: {} tokens, resident {}, used {}, {:.2f}x smaller than fp16\n"
      "arena: {} mapped, {} of it in 2 MiB pages\n"
      "process: {}\n",
      figures.prompt_tokens, per_second(static_cast<double>(figures.prompt_tokens), figures.prompt_seconds),
      figures.generated_tokens, per_second(figures.steps, figures.step_seconds), session.position(), count(resident),
      count(used), resident ? static_cast<double>(fp16) / static_cast<double>(resident) : 0,
      count(arena.reserved_bytes), count(arena.large_page_bytes), count(process));
}

}  // namespace veloxquant::cli
