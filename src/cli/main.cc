// veloxquant: the command line.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <csignal>
#include <exception>

#include "cli/app.h"
#include "io/versions.h"
#include "kernels/instruction_set.h"
#include "veloxquant/errors.h"
#include "veloxquant/options.h"

namespace veloxquant::cli {

#ifndef VQ_HAVE_LLAMA
namespace {

void add_missing(CLI::App& app, const char* name, const char* description) {
  CLI::App* sub = app.add_subcommand(name, std::string(description) + " (not in this build: it needs libllama)");
  sub->allow_extras();
  sub->callback([name] {
    throw std::runtime_error(
        fmt::format("{} needs libllama, which this build does not have\nbuild it with: cmake "
                    "--preset release -DVQ_LLAMA=ON && cmake --build --preset release",
                    name));
  });
}

}  // namespace

void add_generate(CLI::App& app) { add_missing(app, "generate", "Generate text with a GGUF model"); }
void add_compare(CLI::App& app) { add_missing(app, "compare", "Compare methods on a GGUF model"); }
std::string llama_versions() { return {}; }
#endif

namespace {

std::string version_text() {
  const std::string llama = llama_versions();
  return fmt::format("veloxquant {}\nlibraries: {}, CLI11 {}, {}\ninstruction set: {}", kVersion, library_versions(),
                     CLI11_VERSION, llama.empty() ? "no libllama" : llama, kernels::instruction_set());
}

/// The option or subcommand that an unexpected argument was probably meant to be.
std::string hint(const CLI::App& app, std::string_view given) {
  std::vector<std::string> names;
  const CLI::App* scope = app.get_subcommands().empty() ? &app : app.get_subcommands().front();
  for (const CLI::Option* option : scope->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* sub : scope->get_subcommands({})) names.push_back(sub->get_name());
  const std::string near = nearest(given.substr(0, given.find('=')), names);
  return near.empty() ? "" : fmt::format("; did you mean {}?", near);
}

int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    const std::vector<std::string> extras = app.remaining(true);
    if (!extras.empty()) text = fmt::format("unexpected argument {}{}", extras.front(), hint(app, extras.front()));
  }
  print_error(text + "\nsee veloxquant --help");
  return kExitUsage;
}

int run(int argc, char** argv) {
  kernels::obey_environment();
  CLI::App app("Keeps the key/value cache of a language model compressed and computes attention from it.",
               "veloxquant");
  app.set_version_flag("--version", version_text, "Print versions and the instruction set, then exit");
  app.footer(
      "Examples:\n"
      "  veloxquant methods\n"
      "  veloxquant generate -m model.gguf -p 'Why do libraries lend books?' --stats\n"
      "  veloxquant compare -m model.gguf --text long.txt -c 2000\n"
      "  veloxquant replay captured/ --methods 'exact,kivi(bits=4)' --seeds 42..61\n"
      "  veloxquant compare --help\n"
      "Environment: VELOXQUANT_ISA=avx2 and the like run a lower instruction set than the best one; NO_COLOR.");
  add_methods(app);
  add_config(app);
  add_replay(app);
  add_generate(app);
  add_compare(app);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) throw UsageError("no command given\nsee veloxquant --help");
  } catch (const CLI::Success& success) {  // --help and --version
    app.exit(success);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error);
  }
  flush_output();
  return 0;
}

int guarded(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const QuantizerConfigError& error) {
    print_error(error.what());
    return kExitUsage;
  } catch (const UsageError& error) {
    print_error(error.what());
    return kExitUsage;
  } catch (const std::bad_alloc&) {
    print_error("not enough memory");
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return kExitFailure;
}

}  // namespace
}  // namespace veloxquant::cli

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error of write(), as a full disk is
  return veloxquant::cli::guarded(argc, argv);
}
