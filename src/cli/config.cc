// config: what a configuration holds, and what is wrong with one.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/app.h"
#include "core/option_rows.h"
#include "io/file.h"
#include "veloxquant/config.h"
#include "veloxquant/errors.h"

namespace veloxquant::cli {
namespace {

using nlohmann::ordered_json;

constexpr size_t kLargestFile = size_t{64} << 20;

struct Arguments {
  std::string file, method;
  std::vector<std::string> sets;
  bool json = false;
};

KVCacheConfig read_config(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path, kLargestFile);
  return config_from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// Options of the file stay where another method is named; what it does not read is said in the notes.
KVCacheConfig effective(const Arguments& arguments) {
  KVCacheConfig config = arguments.file.empty() ? KVCacheConfig{} : read_config(arguments.file);
  const std::string text = arguments.method.empty() ? config.method.get() : arguments.method;
  const MethodSpec spec = parse_method(text, arguments.sets);
  if (spec.coding) {
    throw UsageError(fmt::format("{}: a composition of two methods has no flat configuration; show its parts", text));
  }
  if (!arguments.method.empty()) config.method = std::string(spec.def->name);
  for (const OptionSpec& row : spec.options.specs()) {
    if (spec.options.explicitly_set(row.name)) config.set(row.name, spec.options.value(row.name));
  }
  const std::vector<std::string> problems = config.problems();
  if (!problems.empty()) throw QuantizerConfigError(problems);
  return config;
}

struct Row {
  std::string name, value, def, range, alias, from, owner;
};

std::string from_text(KVCacheConfig::Origin origin) {
  switch (origin) {
    case KVCacheConfig::Origin::defaulted:
      return "default";
    case KVCacheConfig::Origin::options_struct:
      return "options";
    case KVCacheConfig::Origin::flat:
    case KVCacheConfig::Origin::extension:
      return "given";
  }
  return {};
}

std::string owners(const FlatField& field) {
  std::vector<std::string> names;
  for (const MethodDef* method : field.methods) names.emplace_back(method->name);
  return names.empty() ? "all" : fmt::format("{}", fmt::join(names, ", "));
}

Row row_of(const KVCacheConfig& config, const OptionSpec& spec, std::string owner) {
  return {std::string(spec.name),  to_string(config.get(spec.name)),    to_string(spec.def), spec.range_text(),
          std::string(spec.alias), from_text(config.origin(spec.name)), std::move(owner)};
}

// All flat fields, then what the method has beside them.
std::vector<Row> rows_of(const KVCacheConfig& config) {
  std::vector<Row> rows;
  const MethodSpec spec = default_spec(*find_method(config.method.get()));
  for (const FlatField& field : flat_fields()) {
    if (field.spec == nullptr) {
      rows.push_back({std::string(field.name), "none", "none", "an object, in a program", "", "default", "all"});
    } else {
      const OptionSpec* narrower = find_row(spec.options.specs(), field.name);
      rows.push_back(row_of(config, narrower != nullptr ? *narrower : *field.spec, owners(field)));
    }
  }
  for (const OptionSpec& row : spec.options.specs()) {
    if (find_field(row.name) == nullptr)
      rows.push_back(row_of(config, row, std::string(spec.def->name) + ", extension"));
  }
  return rows;
}

void show(const Arguments& arguments) {
  const KVCacheConfig config = effective(arguments);
  const std::vector<Row> rows = rows_of(config);
  if (arguments.json) {
    ordered_json list = ordered_json::array();
    for (const Row& row : rows) {
      list.push_back({{"name", row.name},
                      {"value", row.value},
                      {"default", row.def},
                      {"range", row.range},
                      {"alias", row.alias},
                      {"from", row.from},
                      {"owner", row.owner}});
    }
    write_json("-", list);
    return;
  }
  Table table({{"field"}, {"value"}, {"default"}, {"from"}, {"range"}, {"alias"}, {"owner"}});
  for (const Row& row : rows) table.add({row.name, row.value, row.def, row.from, row.range, row.alias, row.owner});
  print(table.text());
  for (const std::string& note : config.notes()) print("note: " + note + "\n");
}

void check(const Arguments& arguments) {
  const KVCacheConfig config = read_config(arguments.file);
  const std::vector<std::string> notes = config.notes();
  if (arguments.json) {
    write_json("-", ordered_json::array({{{"method", config.method.get()}, {"notes", notes}}}));
    return;
  }
  print(config.describe() + "\n");
  print(fmt::format("{}: nothing wrong\n", arguments.file));
}

}  // namespace

void add_config(CLI::App& app) {
  CLI::App* config = app.add_subcommand("config", "Show a configuration with all its fields, or check one");
  config->require_subcommand(1);
  const auto arguments = std::make_shared<Arguments>();

  CLI::App* shown = config->add_subcommand("show", "Every field: value, default, where it came from, who reads it");
  shown->add_option("file", arguments->file, "Configuration in JSON");
  shown->add_option("--method", arguments->method, "Method, with options if you like: 'kivi(bits=4)'");
  shown->add_option("--set", arguments->sets, "name=value of the method, by name or alias; may be repeated")
      ->allow_extra_args(false);
  shown->add_flag("--json", arguments->json, "Print JSON");
  shown->callback([arguments] { show(*arguments); });

  CLI::App* checked = config->add_subcommand("check", "All problems of a file at once, or that there are none");
  checked->add_option("file", arguments->file, "Configuration in JSON")->required();
  checked->add_flag("--json", arguments->json, "Print JSON");
  checked->callback([arguments] { check(*arguments); });

  config->footer(
      "Examples:\n"
      "  veloxquant config show --method h2o --set budget=1024\n"
      "  veloxquant config show my.json --json\n"
      "  veloxquant config check my.json");
}

}  // namespace veloxquant::cli
