// Writes what follows from the declared options: the typed fields of KVCacheConfig and the options structs, so that C++
// code names them, and two tables in docs/. `./dev schema` runs it; with --check it only says whether the files are
// what it would write. The table of names reads the API reference of the original system and stays as it is without it.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "veloxquant/fields.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

constexpr std::string_view kNotice = "// Written by `./dev schema` from the options that the methods declare.\n";

std::string base_type(const OptionSpec& spec) {
  switch (spec.type) {
    case OptionType::boolean:
      return "bool";
    case OptionType::integer:
      return spec.per_layer ? "IntegerOrList" : "int64_t";
    case OptionType::real:
      return "double";
    case OptionType::choice:
    case OptionType::text:
      return "std::string";
    case OptionType::integers:
      return "IntegerList";
    case OptionType::array:
      return "ArrayValue";
    case OptionType::map:
      return "MapValue";
  }
  return {};
}

std::string type_of(const OptionSpec& spec) {
  return spec.nullable() ? fmt::format("std::optional<{}>", base_type(spec)) : base_type(spec);
}

std::string literal(const OptionSpec& spec) {
  if (std::holds_alternative<std::monostate>(spec.def)) return "std::nullopt";
  if (const double* x = std::get_if<double>(&spec.def)) {
    const std::string text = fmt::format("{}", *x);
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  }
  if (const std::string* text = std::get_if<std::string>(&spec.def)) return fmt::format("\"{}\"", *text);
  if (const IntegerList* list = std::get_if<IntegerList>(&spec.def)) {
    return fmt::format("IntegerList{{{}}}", fmt::join(*list, ", "));
  }
  if (spec.per_layer) return fmt::format("int64_t{{{}}}", to_string(spec.def));
  return to_string(spec.def);
}

std::string comment(const OptionSpec& spec) { return fmt::format("  /// {} [{}]\n", spec.meaning, spec.range_text()); }

std::string object_field(std::string_view name) {
  if (name == "store") return "  /// Artifacts made before.\n  Field<std::shared_ptr<ArtifactStore>> store{};\n";
  if (name == "observers") {
    return "  /// Told of what the cache does.\n  Field<std::vector<std::shared_ptr<QuantizationObserver>>> "
           "observers{};\n";
  }
  return "  /// Fields of the method in one object; a flat field that is set wins over it.\n"
         "  Field<std::optional<MethodOptions>> options{};\n";
}

std::string config_fields() {
  std::string text = std::string(kNotice) + "\n", visits;
  for (const FlatField& field : flat_fields()) {
    if (field.spec == nullptr) {
      text += object_field(field.name);
    } else {
      text += comment(*field.spec) +
              fmt::format("  Field<{}> {}{{kDefault, {}}};\n", type_of(*field.spec), field.name, literal(*field.spec));
    }
    visits += fmt::format("    visit(\"{0}\", self.{0});\n", field.name);
  }
  return text + "\n  /// visit(name, field) of all fields in the order of the original system's constructor.\n" +
         "  template <class Config, class Visit>\n  static void for_each_field(Config& self, Visit&& visit) {\n" +
         visits + "  }\n";
}

std::string struct_text(const OptionsStruct& group) {
  std::vector<std::string> owners;
  for (const MethodDef* method : group.methods) owners.emplace_back(method->name);
  std::string text = fmt::format("/// Options of {}.\nstruct {} {{\n", fmt::join(owners, ", "), group.name), visits;
  for (const FlatField* field : group.fields) {
    text += comment(*field->spec) +
            fmt::format("  {} {} = {};\n", type_of(*field->spec), field->name, literal(*field->spec));
    visits += fmt::format("    visit(\"{0}\", self.{0});\n", field->name);
  }
  return text + fmt::format("\n  static constexpr std::string_view kName = \"{}\";\n", group.name) +
         fmt::format("  bool operator==(const {}&) const = default;\n", group.name) +
         "  template <class Options, class Visit>\n  static void for_each_field(Options& self, Visit&& visit) {\n" +
         visits + "  }\n};\n\n";
}

std::string option_structs() {
  std::string text = std::string(kNotice) +
                     "#pragma once\n\n#include <cstdint>\n#include <optional>\n#include <string>\n"
                     "#include <string_view>\n#include <variant>\n\n#include \"veloxquant/options.h\"\n\n"
                     "namespace veloxquant {\n\n";
  std::vector<std::string> names;
  for (const OptionsStruct& group : options_structs()) {
    text += struct_text(group);
    names.emplace_back(group.name);
  }
  return text + fmt::format("using MethodOptions = std::variant<{}>;\n\n}}  // namespace veloxquant\n",
                            fmt::join(names, ", "));
}

// --- docs/options.md ---------------------------------------------------------------------------

std::string cell(std::string_view text) {
  std::string safe;
  for (char c : text) safe += c == '|' ? std::string("\\|") : std::string(1, c);
  return safe;
}

std::string table_of(std::span<const OptionSpec> rows) {
  std::string text = "| option | alias | type | default | allowed | meaning |\n|---|---|---|---|---|---|\n";
  for (const OptionSpec& row : rows) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", row.name, row.alias, to_string(row.type),
                        to_string(row.def), cell(row.range_text()), cell(row.meaning));
  }
  return text;
}

std::string options_page() {
  std::string text =
      "# Options\n\nWritten by `./dev schema` from what the methods declare. An alias works in `--set` and in "
      "compositions; "
      "names\nwork there, in JSON and as fields of `KVCacheConfig`. Names that the original system does not have are "
      "its\n"
      "`extensions`.\n\n## All methods\n\n" +
      table_of(general_options());
  for (const MethodDef* method : method_table()) {
    text += fmt::format("\n## {}\n\n{}{}. {}.{}\n", method->name, method->title,
                        method->paper.empty() ? "" : fmt::format(" (arXiv:{})", method->paper), method->summary,
                        method->build ? "" : " Can be configured, not built yet.");
    if (!method->options.empty()) text += "\n" + table_of(method->options);
  }
  return text;
}

// --- docs/names.md -----------------------------------------------------------------------------

struct SeedClass {
  std::string name;
  std::vector<std::string> members;  // methods with "()"
};

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

/// Classes of the API reference with their methods and properties, the fields of the configuration aside.
std::vector<SeedClass> seed_classes(const std::string& reference) {
  constexpr std::string_view kClass = "class veloxquant_mlx.cache.", kProperty = "property ", kEnd = "[source]";
  std::vector<SeedClass> classes;
  std::istringstream lines(reference);
  for (std::string line; std::getline(lines, line);) {
    std::string_view rest = line;
    if (rest.starts_with(kClass)) {
      rest.remove_prefix(kClass.size());
      classes.push_back({std::string(rest.substr(0, rest.find_first_of("([:"))), {}});
      continue;
    }
    if (classes.empty()) continue;
    if (rest.starts_with("static ")) rest.remove_prefix(7);
    if (rest.ends_with(kEnd) && is_name(rest.substr(0, rest.find('(')))) {
      classes.back().members.push_back(std::string(rest.substr(0, rest.find('('))) + "()");
    } else if (rest.starts_with(kProperty)) {
      rest.remove_prefix(kProperty.size());
      classes.back().members.emplace_back(rest.substr(0, rest.find_first_of(": ")));
    }
  }
  return classes;
}

std::vector<const MethodDef*> methods_of(std::string_view cache_class) {
  std::vector<const MethodDef*> methods;
  for (const MethodDef* method : method_table()) {
    if (method->cache_class == cache_class) methods.push_back(method);
  }
  return methods;
}

std::string here(const std::string& owner, const std::string& member) {
  if (member == "merge") return fmt::format("`{}::supports_merge()`: false, as there", owner);
  if (member == "state") return fmt::format("`{0}::state()`, `{0}::set_state()`", owner);
  return fmt::format("`{}::{}`", owner, member.ends_with(')') ? member : member + "()");
}

class NamesPage {
 public:
  std::string text(const std::string& reference) {
    const std::vector<SeedClass> classes = seed_classes(reference);
    for (const SeedClass& c : classes) add_class(c);
    for (const FlatField& field : flat_fields()) {
      row(fmt::format("KVCacheConfig.{}", field.name), fmt::format("`KVCacheConfig::{}`", field.name),
          "config.fields_order_and_defaults_are_those_of_the_original_signature");
      ++fields_;
    }
    for (const OptionsStruct& group : options_structs()) {
      row(std::string(group.name), fmt::format("`{}`", group.name),
          "config.there_are_37_structs_and_their_members_hold_the_defaults");
    }
    row("STANDALONE_METHODS", "`standalone_methods()`", "factory.standalone_methods_are_the_five_of_the_original");
    row("QuantizerConfigError", "`QuantizerConfigError`", "config.several_problems_come_in_one_error");
    for (const char* later : {"ArtifactStore", "QuantizationObserver"}) {
      row(later, "named by the builder and refused: not there yet", "builder.each_rule_has_its_error");
    }
    for (const MethodDef* method : method_table()) {
      if (!method->coordinator.empty() && reference.find(method->coordinator) != std::string::npos) {
        row(std::string(method->coordinator), fmt::format("comes with {}", method->name), "-");
      }
    }
    return fmt::format(
               "# Names\n\nWritten by `./dev schema` from the API reference of the original system: every public name "
               "there, "
               "what it is here,\nand the test that shows it. {} fields, {} options structs, {} cache classes ({} of "
               "them there "
               "now), {} builder calls.\n\n| there | here | test |\n|---|---|---|\n",
               fields_, options_structs().size(), caches_, present_, builder_calls_) +
           rows_;
  }

 private:
  void row(const std::string& seed, const std::string& ours, std::string_view test) {
    rows_ += fmt::format("| {} | {} | {} |\n", seed, ours, test);
  }

  void add_class(const SeedClass& c) {
    if (c.name == "KVCacheConfig") {
      row(c.name, "`KVCacheConfig`", "config.a_field_knows_whether_it_was_set");
    } else if (c.name == "KVCacheBuilder") {
      row(c.name, "`KVCacheBuilder`", "builder.the_example_of_the_original_system_builds");
      for (const std::string& member : c.members) {
        const bool sets = member.starts_with("with_");
        row(c.name + "." + member, fmt::format("`KVCacheBuilder::{}`", member),
            sets                      ? "builder.every_call_sets_its_field"
            : member == "for_model()" ? "for_model.every_layer_has_an_entry_and_those_without_attention_their_own_cache"
                                      : "builder.several_problems_come_in_one_error");
        ++builder_calls_;
      }
    } else if (c.name == "KVCacheFactory") {
      row(c.name, "`KVCacheFactory`", "factory.every_method_is_built_or_says_which_can_be");
      row("KVCacheFactory.create()", "`KVCacheFactory::create()`",
          "factory.every_method_is_built_or_says_which_can_be");
    } else {
      add_cache(c);
    }
  }

  void add_cache(const SeedClass& c) {
    ++caches_;
    const std::vector<const MethodDef*> methods = methods_of(c.name);
    const bool wrapper = c.name == "SlidingWindowKVCache";
    const bool present = wrapper || (!methods.empty() && methods.front()->build);
    present_ += present;
    const std::string later = methods.empty() ? "-" : fmt::format("comes with {}", methods.front()->name);
    const std::string test = present ? "seed_caches." + c.name + "_has_its_members" : "-";
    row(c.name, present ? fmt::format("`{}`", c.name) : later, test);
    for (const std::string& member : c.members)
      row(c.name + "." + member, present ? here(c.name, member) : later, test);
  }

  std::string rows_;
  int fields_ = 0, caches_ = 0, present_ = 0, builder_calls_ = 0;
};

struct Output {
  std::string path, text;
};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int run(const std::string& root, bool check) {
  std::vector<Output> outputs = {{"include/veloxquant/config_fields.inc", config_fields()},
                                 {"include/veloxquant/option_structs.h", option_structs()},
                                 {"docs/options.md", options_page()}};
  const std::string reference = content(root + "/../shared/spec/seed_api_reference.txt");
  if (reference.empty()) {
    std::cerr << "the API reference of the original system is not there: docs/names.md stays as it is\n";
  } else {
    outputs.push_back({"docs/names.md", NamesPage().text(reference)});
  }
  bool same = true;
  for (const Output& output : outputs) {
    const std::string path = root + "/" + output.path;
    if (content(path) == output.text) continue;
    same = false;
    if (check) {
      std::cerr << output.path << " is not what the declared options give; run ./dev schema\n";
    } else {
      std::ofstream(path, std::ios::binary) << output.text;
    }
  }
  return check && !same ? 1 : 0;
}

}  // namespace
}  // namespace veloxquant

int main(int count, char** arguments) {
  if (count < 2) {
    std::cerr << "usage: write_schema PROJECT_ROOT [--check]\n";
    return 2;
  }
  return veloxquant::run(arguments[1], count > 2 && std::string(arguments[2]) == "--check");
}
