// veloxquant compare: methods beside llama's own caches on the same text.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>

#include "cli/app.h"
#include "hosts/llama/lockstep.h"
#include "io/file.h"

namespace veloxquant::cli {
namespace {

using llama::kLeastContext;
using llama::kPredictions;
using llama::LlamaHost;
using llama::LockstepResult;
using llama::LockstepRow;
using llama::Token;
using nlohmann::ordered_json;

constexpr int kDefaultContext = 4000;
constexpr size_t kTextBytes = size_t{1} << 30;

struct Arguments {
  std::string model, text, json;
  std::string methods = "exact,turboquant_rvq,kivi,kivi(bits=4),llama:f16,llama:q8_0,llama:q4_0";
  int context = 0, threads = 0;
};

std::string read_text(const Arguments& args) {
  const std::vector<std::byte> bytes = read_file(args.text, kTextBytes);
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    throw UsageError(fmt::format("{}: the text is empty", args.text));
  return text;
}

std::vector<Token> first_tokens(const LlamaHost& host, const Arguments& args, const std::string& text) {
  const int trained = host.trained_context();
  if (trained < kPredictions + kLeastContext) {
    throw UsageError(fmt::format("{}: the model was trained for {} tokens, fewer than the {} that a comparison needs",
                                 args.model, trained, kPredictions + kLeastContext));
  }
  if (args.context > trained) {
    throw UsageError(fmt::format("-c {}: the model was trained for at most {} tokens", args.context, trained));
  }
  const auto wanted = static_cast<size_t>(args.context > 0 ? args.context : std::min(kDefaultContext, trained));
  std::vector<Token> tokens = host.tokenize(text, false);
  if (tokens.size() < wanted) {
    throw UsageError(fmt::format("{}: has {} tokens, fewer than the {} of -c", args.text, tokens.size(), wanted));
  }
  tokens.resize(wanted);
  return tokens;
}

std::string table_text(const LockstepResult& result, size_t tokens) {
  Table table({{"method"},
               {"perplexity", true},
               {"KL", true},
               {"top-1", true},
               {"resident", true},
               {"bits", true},
               {"prefill tok/s", true},
               {"encode", true},
               {"decode tok/s", true}});
  for (const LockstepRow& row : result.rows) {
    table.add({row.method, fmt::format("{:.3f}", row.perplexity), fmt::format("{:.5f}", row.kl_mean),
               fmt::format("{:.1f} %", 100 * row.top1_agreement), bytes_text(static_cast<double>(row.resident_bytes)),
               fmt::format("{:.2f}", row.bits_per_element), fmt::format("{:.1f}", row.prefill_tokens_per_s),
               fmt::format("{:.1f} %", 100 * row.encode_share), fmt::format("{:.1f}", row.decode_tokens_per_s)});
  }
  return table.text() +
         fmt::format(
             "floor: KL {:.5f} between llama's f32 cache without flash attention and llama:f16\n"
             "{} tokens: {} of context, {} predicted. KL and top-1 are against llama:f16. Encode is the share of the\n"
             "prefill's time in which rows were coded and stored. Resident bytes of llama:* are what its cache needs "
             "for "
             "exactly these tokens.\n",
             result.floor_kl, tokens, tokens - kPredictions, kPredictions);
}

ordered_json json_of(const LockstepResult& result) {
  ordered_json rows = ordered_json::array();
  for (const LockstepRow& row : result.rows) {
    rows.push_back({{"method", row.method},
                    {"perplexity", row.perplexity},
                    {"kl_mean", row.kl_mean},
                    {"top1_agreement", row.top1_agreement},
                    {"resident_bytes", row.resident_bytes},
                    {"bits_per_element", row.bits_per_element},
                    {"prefill_tokens_per_s", row.prefill_tokens_per_s},
                    {"encode_share", row.encode_share},
                    {"decode_tokens_per_s", row.decode_tokens_per_s}});
  }
  return {{"schema_version", 1}, {"rows", rows}, {"floor_kl", result.floor_kl}};
}

void report(const Arguments& args, const LockstepResult& result, size_t tokens) {
  if (args.json != "-") print(table_text(result, tokens));
  if (args.json.empty()) return;
  const std::string text = json_of(result).dump(2, ' ', false, ordered_json::error_handler_t::replace) + '\n';
  if (args.json == "-") {
    print(text);
  } else {
    write_file(args.json, text);
  }
}

void compare(const Arguments& args) {
  const std::vector<std::string> methods = split_list(args.methods);
  llama::check_methods(methods);
  if (!args.json.empty() && args.json != "-") veloxquant::check_writable(args.json);
  const std::string text = read_text(args);
  LlamaHost host({.model = args.model,
                  .threads = args.threads,
                  .context = args.context > 0 ? args.context : kDefaultContext,
                  .sequences = static_cast<int>(methods.size())});
  const std::vector<Token> tokens = first_tokens(host, args, text);
  Progress progress("compare", llama::lockstep_work(methods, static_cast<int>(tokens.size())));
  const LockstepResult result =
      llama::run_lockstep(host, methods, tokens, [&](int64_t done) { progress.advance(done); });
  report(args, result, tokens.size());
}

}  // namespace

void add_compare(CLI::App& app) {
  auto args = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("compare", "Compare methods and llama's own caches on a GGUF model and a text");
  command->add_option("-m,--model", args->model, "GGUF file")->required();
  command->add_option("--text", args->text, "Text file")->required();
  command
      ->add_option("--methods", args->methods,
                   "Methods or compositions, and llama's own caches llama:f16, llama:q8_0, llama:q4_0")
      ->capture_default_str();
  command
      ->add_option(
          "-c,--context", args->context,
          fmt::format("Tokens of the text to use; default: {} or what the model was trained for", kDefaultContext))
      ->check(CLI::Range(kPredictions + kLeastContext, 1 << 24));
  command->add_option("-t,--threads", args->threads, "Threads; default: one per hardware thread")
      ->check(CLI::Range(1, 1024));
  command->add_option("--json", args->json, "Also write the rows to this file; -: only them, to standard output");
  command->footer(fmt::format(
      "The last {0} tokens are predicted, each by the logits after its predecessor, and fed one by one; what comes\n"
      "before them is one prefill. Perplexity, KL(llama:f16 || method) in nats and top-1 agreement are over these\n"
      "{0} predictions. All methods take each step in turn; decode speed is the median over the last {1} steps.\n"
      "Examples:\n"
      "  veloxquant compare -m model.gguf --text long.txt -c 2000\n"
      "  veloxquant compare -m model.gguf --text long.txt --methods 'exact,kivi(bits=4),llama:f16' --json rows.json",
      kPredictions, llama::kTimedSteps));
  command->callback([args] { compare(*args); });
}

}  // namespace veloxquant::cli
