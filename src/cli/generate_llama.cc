// veloxquant generate: text from a GGUF model whose KV cache is ours.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <array>
#include <iostream>
#include <iterator>
#include <memory>

#include "cli/app.h"
#include "cli/writer_llama.h"
#include "io/file.h"
#include "veloxquant/registry.h"

namespace veloxquant::cli {
namespace {

using llama::LlamaHost;
using llama::Session;
using llama::Token;

constexpr int kDefaultTokens = 256;
constexpr size_t kPromptBytes = size_t{64} << 20;

struct Arguments {
  std::string model, prompt, file, standard_input;
  int tokens = kDefaultTokens, context = 0, threads = 0;
  std::string method = "turboquant_rvq";
  std::vector<std::string> sets;
  uint32_t seed = 0;
  float temperature = 0;
  bool raw = false, stats = false, chat = false;
  bool tokens_given = false;
};

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
  return chat ? host.tokenize(host.chat_text(std::array{llama::ChatMessage{"user", text}}), true)
              : host.tokenize(text, false);
}

/// How many tokens may be generated: -n, as far as the context goes where -n was not given.
int room(const Session& session, const Arguments& args, size_t prompt) {
  const int most = session.room();
  if (args.context > most) {
    throw UsageError(fmt::format("-c {}: the model was trained for at most {} tokens", args.context, most));
  }
  const int64_t context = args.context > 0 ? args.context : most;
  const int64_t left = context - static_cast<int64_t>(prompt);
  if (left < 1 || (args.tokens_given && args.tokens > left)) {
    throw UsageError(
        fmt::format("{} prompt tokens and {} to generate do not fit in a context of {}", prompt, args.tokens, context));
  }
  return static_cast<int>(std::min<int64_t>(args.tokens, left));
}

void generate(const Arguments& args) {
  if (args.chat) {
    (void)parse_method(args.method, args.sets);  // before the model is loaded
    catch_interrupt();
    LlamaHost host({.model = args.model, .threads = args.threads, .cancel = &interrupted});
    return chat(host, {args.method, args.sets, args.temperature, args.seed, args.tokens});
  }
  const std::string text = read_prompt(args);
  const MethodSpec method = parse_method(args.method, args.sets);
  catch_interrupt();
  LlamaHost host({.model = args.model, .threads = args.threads, .cancel = &interrupted, .context = args.context});
  const std::vector<Token> prompt = prompt_tokens(host, args, text);
  Session session(host, method);
  const int limit = room(session, args, prompt.size());
  const Figures figures = Writer(session, args.temperature, args.seed).run(prompt, limit);
  if (args.stats) fmt::print(stderr, "{}", stats_text(session, figures));
}

void add_prompt_options(CLI::App& command, Arguments& args) {
  CLI::Option_group* prompt = command.add_option_group("prompt", "One of");
  prompt->add_option("-p,--prompt", args.prompt, "Prompt");
  prompt->add_option("-f,--file", args.file, "File with the prompt");
  prompt->add_option("stdin", args.standard_input, "-: the prompt comes from standard input")
      ->check(CLI::IsMember({"-"}));
  prompt->add_flag("--chat", args.chat, "A conversation: every line of standard input is a message; /help says more");
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
      "  veloxquant generate -m model.gguf --chat --method 'streaming_llm+turboquant_rvq' --set positions=cache\n"
      "  echo 'Once upon a time' | veloxquant generate -m model.gguf - --raw --temp 0.8 --seed 7");
  command->callback([args, tokens] {
    args->tokens_given = tokens->count() > 0;
    generate(*args);
  });
}

}  // namespace veloxquant::cli
