// The subcommands and what they share: one function each that registers a subcommand with its options and callback.
// A callback throws; main() maps the exception to a message on stderr and an exit code.
#pragma once

#include <CLI/App.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cli/output.h"

namespace veloxquant::cli {

/// Ours and CLI11's complaints about arguments, and QuantizerConfigError.
inline constexpr int kExitUsage = 2;
/// Everything else that went wrong.
inline constexpr int kExitFailure = 1;

/// Arguments that make no sense, found by a callback: exit code 2.
struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

void add_methods(CLI::App& app);
void add_config(CLI::App& app);
void add_replay(CLI::App& app);
// In *_llama.cc; without libllama main.cc has stand-ins that say how to get them.
void add_generate(CLI::App& app);
void add_compare(CLI::App& app);
/// "libllama 0.5.0, ggml 0.25.3", or empty without libllama.
std::string llama_versions();

/// "a,b(c=1,d=2),e" -> "a", "b(c=1,d=2)", "e": commas inside parentheses do not split. Throws UsageError for an empty
/// entry; whatever else is wrong with an entry is for parse_method to say.
std::vector<std::string> split_list(std::string_view text);
/// "42..61" or "42", both ends inclusive, at most 10,000 seeds. Throws UsageError.
std::vector<int64_t> parse_seeds(std::string_view text);

}  // namespace veloxquant::cli
