#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>

#include "core/option_rows.h"
#include "core/text.h"
#include "methods/method_registry.h"
#include "veloxquant/errors.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

struct ParsedOption {
  std::string_view name, value;
};

struct ParsedMethod {
  std::string_view name;
  std::vector<ParsedOption> options;
};

/// Recursive descent over the grammar of registry.h. Stops at the first error and keeps what it has read till then, so
/// that the other problems of the text are reported too.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) { composition(); }

  const std::vector<ParsedMethod>& methods() const { return methods_; }
  const std::optional<std::string>& error() const { return error_; }

 private:
  void composition() {
    if (!method()) return;
    if (take('+') && !method()) return;
    skip_blanks();
    if (at_ < text_.size()) fail("expected the end");
  }

  bool method() {
    const std::string_view name = word();
    if (name.empty()) return fail("expected the name of a method");
    methods_.push_back({name, {}});
    if (!take('(')) return true;
    do {
      if (!option(methods_.back())) return false;
    } while (take(','));
    return take(')') || fail("expected ',' or ')'");
  }

  bool option(ParsedMethod& method) {
    const std::string_view name = word();
    if (name.empty()) return fail("expected the name of an option");
    if (!take('=')) return fail("expected '='");
    skip_blanks();
    const size_t begin = at_;
    at_ = std::min(text_.find_first_of("(),=", at_), text_.size());
    const std::string_view value = trimmed(text_.substr(begin, at_ - begin));
    if (value.empty()) return fail("expected a value");
    method.options.push_back({name, value});
    return true;
  }

  std::string_view word() {
    skip_blanks();
    const size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  }

  bool take(char c) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void skip_blanks() {
    while (at_ < text_.size() && trimmed(text_.substr(at_, 1)).empty()) ++at_;
  }

  bool fail(std::string_view what) {
    error_ = fmt::format("{} at character {} of {}", what, at_ + 1, quote(text_));
    return false;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<ParsedMethod> methods_;
  std::optional<std::string> error_;
};

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const MethodDef* def : method_table()) names.emplace_back(def->name);
  return names;
}

std::string unknown_option(const MethodDef& def, const Options& options, std::string_view name) {
  std::vector<std::string> owners;
  for (const MethodDef* other : method_table()) {
    if (other != &def && find_row_or_alias(other->options, name) != nullptr) owners.emplace_back(other->name);
  }
  if (!owners.empty()) {
    return fmt::format("{} has no option {}; it belongs to {}", def.name, quote(name), listed(owners));
  }
  std::vector<std::string> names;
  for (const OptionSpec& spec : options.specs()) {
    names.emplace_back(spec.name);
    if (!spec.alias.empty()) names.emplace_back(spec.alias);
  }
  const std::string near = nearest(name, names);
  if (!near.empty()) return fmt::format("{} has no option {}; did you mean '{}'?", def.name, quote(name), near);
  return fmt::format("{} has no option {}; it has {}", def.name, quote(name), listed(names));
}

/// Sets one option and adds what is wrong with it to `problems`. False when it is unknown.
void set_option(MethodSpec& spec, std::string_view name, std::string_view value, std::vector<std::string>& problems) {
  if (find_row_or_alias(spec.options.specs(), name) == nullptr) {
    problems.push_back(unknown_option(*spec.def, spec.options, name));
  } else if (const std::optional<std::string> problem = spec.options.set_text(name, value)) {
    problems.push_back(fmt::format("{}: {}", spec.def->name, *problem));
  }
}

void set_parsed(MethodSpec& spec, const ParsedMethod& parsed, std::vector<std::string>& problems) {
  for (const ParsedOption& option : parsed.options) {
    const OptionSpec* known = find_row_or_alias(spec.options.specs(), option.name);
    if (known != nullptr && spec.options.explicitly_set(known->name)) {
      problems.push_back(fmt::format("{}: {} is given twice", spec.def->name, known->name));
    }
    set_option(spec, option.name, option.value, problems);
  }
}

/// Further texts go to the part of a composition that has the option, the first that has it.
void set_further(std::span<MethodSpec> parts, std::span<const std::string> sets, std::vector<std::string>& problems) {
  for (const std::string& text : sets) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      problems.push_back(fmt::format("expected name=value, got {}", quote(text)));
      continue;
    }
    const std::string_view whole = text, name = trimmed(whole.substr(0, equals));
    const auto owner = std::ranges::find_if(
        parts, [&](const MethodSpec& part) { return find_row_or_alias(part.options.specs(), name) != nullptr; });
    set_option(owner == parts.end() ? parts.front() : *owner, name, whole.substr(equals + 1), problems);
  }
}

/// What every method has holds for a composition as a whole, whichever part says it.
void share_general_options(MethodSpec& rows, MethodSpec& coding, std::vector<std::string>& problems) {
  for (const OptionSpec& option : general_options()) {
    const bool both = rows.options.explicitly_set(option.name) && coding.options.explicitly_set(option.name);
    if (both && rows.options.value(option.name) != coding.options.value(option.name)) {
      problems.push_back(fmt::format("{}: {} is given twice, {} with {} and {} with {}", rows.text, option.name,
                                     to_string(rows.options.value(option.name)), rows.def->name,
                                     to_string(coding.options.value(option.name)), coding.def->name));
    }
    MethodSpec& from = coding.options.explicitly_set(option.name) ? coding : rows;
    MethodSpec& to = &from == &rows ? coding : rows;
    if (from.options.explicitly_set(option.name)) to.options.set(option.name, from.options.value(option.name));
  }
}

std::vector<std::string> composition_problems(std::span<const MethodSpec> parts) {
  std::vector<std::string> problems, choosers;
  for (const MethodDef* def : method_table()) {
    if (def->chooses_rows) choosers.emplace_back(def->name);
  }
  const MethodDef& rows = *parts[0].def;
  const MethodDef& coding = *parts[1].def;
  if (!rows.chooses_rows) {
    problems.push_back(
        fmt::format("{} + {}: the first part has to choose rows, and {} keeps all (methods that choose: {})", rows.name,
                    coding.name, rows.name, listed(choosers)));
  }
  if (coding.chooses_rows) {
    problems.push_back(fmt::format("{} + {}: the second part has to say how rows are stored, and {} chooses rows",
                                   rows.name, coding.name, coding.name));
  }
  return problems;
}

std::vector<std::string> geometry_problems(const LayerShape& shape) {
  constexpr int kMost = 65536;
  std::vector<std::string> problems;
  const auto want = [&](std::string_view name, int given, int most, int least = 1) {
    if (given >= least && given <= most) return;
    problems.push_back(fmt::format("{}: got {}, allowed {}..{}", name, given, least, most));
  };
  want("kv_heads", shape.kv_heads, kMost);
  want("q_heads", shape.q_heads, kMost, 0);
  want("dim_k", shape.dim_k, kMost);
  want("dim_v", shape.dim_v, kMost);
  if (problems.empty() && shape.value_is_key_prefix && shape.dim_v > shape.dim_k) {
    problems.push_back(fmt::format("dim_v: got {}, allowed 1..{}: values are part of keys", shape.dim_v, shape.dim_k));
  }
  if (problems.empty() && shape.q_heads % shape.kv_heads != 0) {
    problems.push_back(
        fmt::format("q_heads: got {}, allowed multiples of {} (kv_heads)", shape.q_heads, shape.kv_heads));
  }
  return problems;
}

}  // namespace

std::string not_there_yet(const MethodDef& def) {
  std::vector<std::string> names;
  for (const MethodDef* built : built_methods()) names.emplace_back(built->name);
  return fmt::format("{} can be configured but not built yet (methods that can: {})", def.name, listed(names));
}

const std::vector<const MethodDef*>& built_methods() {
  static const std::vector<const MethodDef*> methods = [] {
    std::vector<const MethodDef*> built;
    std::ranges::copy_if(method_table(), std::back_inserter(built),
                         [](const MethodDef* m) { return m->build != nullptr; });
    return built;
  }();
  return methods;
}

const MethodDef* find_method(std::string_view name) {
  for (const MethodDef* def : method_table()) {
    if (def->name == name) return def;
  }
  return nullptr;
}

const std::vector<OptionSpec>& general_options() {
  static const std::vector<OptionSpec> options = {
      integer_option("seed", "", 42, -0x1p63, 0x1p63, "base seed; layer i uses seed + i"),
      {.name = "dtype",
       .alias = {},
       .type = OptionType::choice,
       .def = {},
       .choices = {"f16", "bf16", "f32"},
       .meaning = "element type of exact rows; none: that of the input, f16 for f32 input"},
      {.name = "capacity",
       .alias = {},
       .type = OptionType::integer,
       .def = {},
       .min = 1,
       .max = std::numeric_limits<int32_t>::max(),
       .choices = {},
       .meaning = "most rows a sequence may store; a call that would store more is refused; none: no limit"},
      {.name = "attend_precision",
       .alias = {},
       .type = OptionType::choice,
       .def = "2term",
       .min = 0,
       .max = 0,
       .choices = {"float", "2term", "fast"},
       .meaning = "arithmetic on coded rows: fp32, integers of 15 bits (error 1e-4), integers of 7 bits"},
      boolean_option("use_metal_kernels", "", false, "true: vector kernels are required; results are equal either way")
          .none_by_default(),
      boolean_option("fused_sdpa", "", false, "true: the engine calls attend, step or observe, and fetches no rows")
          .or_none(),
      integer_option("fused_sdpa_max_ctx", "", 1, 1, std::numeric_limits<int32_t>::max(),
                     "most tokens a sequence may store; a call that would store more is refused; none: no limit")
          .none_by_default(),
      boolean_option("fused_sdpa_memory_bound", "", false, "rows can't be fetched; needs fused_sdpa"),
  };
  return options;
}

std::string unknown_method(std::string_view name) {
  const std::vector<std::string> names = method_names();
  const std::string near = nearest(name, names);
  const std::string hint = near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
  return fmt::format("unknown method {}{} (methods: {})", quote(name), hint, listed(names));
}

MethodSpec default_spec(const MethodDef& def) {
  std::vector<OptionSpec> options = def.options;
  options.insert(options.end(), general_options().begin(), general_options().end());
  return {std::string(def.name), &def, Options(std::move(options))};
}

MethodSpec parse_method(std::string_view text, std::span<const std::string> sets) {
  const Parser parser(text);
  std::vector<std::string> problems;
  if (parser.error()) problems.push_back(*parser.error());
  std::vector<MethodSpec> specs;
  for (const ParsedMethod& parsed : parser.methods()) {
    const MethodDef* def = find_method(parsed.name);
    if (def == nullptr) {
      problems.push_back(unknown_method(parsed.name));
      continue;
    }
    specs.push_back(default_spec(*def));
    specs.back().text = text;
    set_parsed(specs.back(), parsed, problems);
  }
  if (specs.size() == 2) {
    const std::vector<std::string> found = composition_problems(specs);
    problems.insert(problems.end(), found.begin(), found.end());
  }
  if (!specs.empty() && specs.size() == parser.methods().size()) set_further(specs, sets, problems);
  if (specs.size() == 2) share_general_options(specs[0], specs[1], problems);
  if (!problems.empty()) throw QuantizerConfigError(std::move(problems));
  if (specs.size() == 2) specs[0].coding = std::make_shared<const MethodSpec>(std::move(specs[1]));
  return std::move(specs.front());
}

Recipe build_recipe(const MethodSpec& spec, const BuildContext& context) {
  Recipe recipe = spec.def->build(spec.options, context);
  if (!spec.coding) return recipe;
  BuildContext stored = context;
  stored.store = recipe.store.value_or(context.store);
  Recipe coding = spec.coding->def->build(spec.coding->options, stored);
  recipe.sink_pool = std::move(coding.sink_pool);
  recipe.placement = std::move(coding.placement);
  recipe.key = std::move(coding.key);
  recipe.value = std::move(coding.value);
  return recipe;
}

std::vector<std::string> method_problems(const MethodSpec& spec, const LayerShape& shape) {
  std::vector<std::string> problems;
  for (std::string& problem : geometry_problems(shape)) {
    problems.push_back(fmt::format("{}: {}", spec.def->name, problem));
  }
  const Options& options = spec.options;
  const bool fused = options.has_value("fused_sdpa") && options.boolean("fused_sdpa");
  if (options.boolean("fused_sdpa_memory_bound") && !fused) {
    problems.push_back(
        fmt::format("{}: fused_sdpa_memory_bound: got true, allowed with fused_sdpa alone", spec.def->name));
  }
  for (const MethodSpec* part = &spec; problems.empty() && part != nullptr; part = part->coding.get()) {
    if (!part->def->check) continue;
    for (std::string& problem : part->def->check(part->options, shape)) {
      problems.push_back(fmt::format("{}: {}", part->def->name, problem));
    }
  }
  return problems;
}

void check_method(const MethodSpec& spec, const LayerShape& shape) {
  std::vector<std::string> problems = method_problems(spec, shape);
  for (std::string& problem : problems) problem = fmt::format("layer {}: {}", shape.layer, problem);
  for (const MethodSpec* part = &spec; part != nullptr; part = part->coding.get()) {
    if (!part->def->build) problems.push_back(not_there_yet(*part->def));
  }
  if (!problems.empty()) throw QuantizerConfigError(std::move(problems));
}

}  // namespace veloxquant
