// veloxquant generate: text from a GGUF model whose KV cache is ours.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>

#include "cli/app.h"
#include "hosts/llama/sampler.h"
#include "hosts/llama/session.h"
#include "hosts/llama/text_rules.h"
#include "io/file.h"
#include "veloxquant/registry.h"

namespace veloxquant::cli {
namespace {

using llama::LlamaHost;
using llama::Session;
using llama::Token;
using Clock = std::chrono::steady_clock;

constexpr int kDefaultTokens = 256;
constexpr size_t kPromptBytes = size_t{64} << 20;

struct Arguments {
  std::string model, prompt, file, standard_input;
  int tokens = kDefaultTokens, context = 0, threads = 0;
  std::string method = "turboquant_rvq";
  std::vector<std::string> sets;
  uint32_t seed = 0;
  float temperature = 0;
  bool raw = false, stats = false;
  bool tokens_given = false;
};

struct Figures {
  size_t prompt_tokens = 0, generated_tokens = 0;
  int steps = 0;  ///< calls of one generated token; the last token needs none
  double prompt_seconds = 0, step_seconds = 0;
};

std::atomic<bool> interrupted = false;

/// Ctrl-C ends the text; a second one ends the program.
void catch_interrupt() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string read_prompt(const Arguments& args) {
  std::string text = args.prompt;
  if (!args.standard_input.empty()) {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else if (!args.file.empty()) {
    const std::vector<std::byte> bytes = read_file(args.file, kPromptBytes);
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) throw UsageError("the prompt is empty");
  return text;
}

std::vector<Token> prompt_tokens(const LlamaHost& host, const Arguments& args, const std::string& text) {
  const bool chat = !args.raw && host.has_chat_template();
  return chat ? host.tokenize(host.chat_prompt(text), true) : host.tokenize(text, false);
}

/// How many tokens may be generated: -n, as far as the context goes where -n was not given.
int room(const LlamaHost& host, const Arguments& args, size_t prompt) {
  const int trained = host.trained_context();
  if (args.context > trained) {
    throw UsageError(fmt::format("-c {}: the model was trained for at most {} tokens", args.context, trained));
  }
  const int64_t context = args.context > 0 ? args.context : trained;
  const int64_t left = context - static_cast<int64_t>(prompt);
  if (left < 1 || (args.tokens_given && args.tokens > left)) {
    throw UsageError(
        fmt::format("{} prompt tokens and {} to generate do not fit in a context of {}", prompt, args.tokens, context));
  }
  return static_cast<int>(std::min<int64_t>(args.tokens, left));
}

/// Generates and prints until `limit` tokens, the model's end of text or Ctrl-C.
class Writer {
 public:
  Writer(Session& session, const Arguments& args) : session_(session), sampler_(args.temperature, args.seed) {}

  Figures run(std::span<const Token> prompt, int limit) {
    figures_.prompt_tokens = prompt.size();
    try {
      const Clock::time_point start = Clock::now();
      std::span<const float> logits = session_.decode(prompt, Phase::prefill_last);
      figures_.prompt_seconds = seconds_since(start);
      while (std::optional<Token> token = next(logits)) {
        if (static_cast<int>(figures_.generated_tokens) == limit || interrupted) break;
        logits = step(*token);
      }
    } catch (const llama::Cancelled&) {  // Ctrl-C inside a call
    }
    show(text_.finish() + "\n");
    return figures_;
  }

 private:
  std::optional<Token> next(std::span<const float> logits) {
    const Token token = sampler_.pick(logits);
    if (session_.host().ends_text(token)) return std::nullopt;
    ++figures_.generated_tokens;
    show(text_.push(session_.host().piece(token)));
    return token;
  }

  std::span<const float> step(Token token) {
    const Clock::time_point start = Clock::now();
    const std::span<const float> logits = session_.decode(std::span(&token, 1), Phase::decode);
    figures_.step_seconds += seconds_since(start);
    ++figures_.steps;
    return logits;
  }

  static void show(const std::string& text) {
    print(text);
    flush_output();
  }

  Session& session_;
  llama::Sampler sampler_;
  llama::Utf8Stream text_;
  Figures figures_;
};

/// Resident memory of this process, as the system counts it.
size_t process_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

double per_second(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

void print_stats(Session& session, const Figures& figures) {
  CacheSet& caches = session.caches();
  const size_t resident = caches.nbytes(), used = caches.used_bytes(), process = process_bytes();
  const ArenaStats arena = caches.arena();
  size_t fp16 = 0;
  for (int i = 0; i < caches.size(); ++i) {
    const CacheStats stats = caches[i].peek();
    fp16 += stats.key.fp16_bytes + stats.value.fp16_bytes;
  }
  const auto count = [](size_t bytes) {
    return fmt::format("{} ({} bytes)", bytes_text(static_cast<double>(bytes)), bytes);
  };
  fmt::print(stderr,
             "prompt: {} tokens, {:.1f} tokens/s\n"
             "generated: {} tokens, {:.1f} tokens/s\n"
             "cache: {} tokens, resident {}, used {}, {:.2f}x smaller than fp16\n"
             "arena: {} mapped, {} of it in 2 MiB pages\n"
             "process: {}\n",
             figures.prompt_tokens, per_second(static_cast<double>(figures.prompt_tokens), figures.prompt_seconds),
             figures.generated_tokens, per_second(figures.steps, figures.step_seconds), session.position(),
             count(resident), count(used), resident ? static_cast<double>(fp16) / static_cast<double>(resident) : 0,
             count(arena.reserved_bytes), count(arena.large_page_bytes), count(process));
}

void generate(const Arguments& args) {
  const std::string text = read_prompt(args);
  const MethodSpec method = parse_method(args.method, args.sets);
  catch_interrupt();
  LlamaHost host({.model = args.model, .threads = args.threads, .cancel = &interrupted, .context = args.context});
  const std::vector<Token> prompt = prompt_tokens(host, args, text);
  const int limit = room(host, args, prompt.size());
  Session session(host, method);
  const Figures figures = Writer(session, args).run(prompt, limit);
  if (args.stats) print_stats(session, figures);
}

void add_prompt_options(CLI::App& command, Arguments& args) {
  CLI::Option_group* prompt = command.add_option_group("prompt", "One of");
  prompt->add_option("-p,--prompt", args.prompt, "Prompt");
  prompt->add_option("-f,--file", args.file, "File with the prompt");
  prompt->add_option("stdin", args.standard_input, "-: the prompt comes from standard input")
      ->check(CLI::IsMember({"-"}));
  prompt->require_option(1);
  command.add_flag("--raw", args.raw, "Take the prompt as it is, even where the model has a chat template");
}

}  // namespace

void add_generate(CLI::App& app) {
  auto args = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("generate", "Generate text with a GGUF model and a compressed KV cache");
  command->add_option("-m,--model", args->model, "GGUF file")->required();
  add_prompt_options(*command, *args);
  CLI::Option* tokens =
      command->add_option("-n,--tokens", args->tokens, "Most tokens to generate; the default ends with the context")
          ->check(CLI::Range(1, 1 << 24))
          ->capture_default_str();
  command->add_option("-c,--context", args->context, "Most tokens in all; default: what the model was trained for")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("-t,--threads", args->threads, "Threads; default: one per hardware thread")
      ->check(CLI::Range(1, 1024));
  command->add_option("--method", args->method, "Method or composition; see veloxquant methods")->capture_default_str();
  command->add_option("--set", args->sets, "An option of the method: name=value; can be repeated")
      ->expected(1)
      ->take_all();
  command->add_option("--temp", args->temperature, "0: always the likeliest token; else sample from the 40 likeliest")
      ->check(CLI::Range(0.0F, 100.0F))
      ->capture_default_str();
  command->add_option("--seed", args->seed, "Seed of the sampling")->capture_default_str();
  command->add_flag("--stats", args->stats, "End with tokens, speeds and bytes, on standard error");
  command->footer(
      "Ctrl-C ends the text; the statistics are printed and the exit code is 0.\n"
      "Examples:\n"
      "  veloxquant generate -m model.gguf -p 'Why do libraries lend books?' --stats\n"
      "  veloxquant generate -m model.gguf -f long.txt -n 200 --method 'kivi(bits=4)' --set residual=64\n"
      "  echo 'Once upon a time' | veloxquant generate -m model.gguf - --raw --temp 0.8 --seed 7");
  command->callback([args, tokens] {
    args->tokens_given = tokens->count() > 0;
    generate(*args);
  });
}

}  // namespace veloxquant::cli
