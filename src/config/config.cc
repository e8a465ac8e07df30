#include "veloxquant/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <type_traits>

#include "config/values.h"
#include "core/check.h"
#include "core/option_rows.h"
#include "core/text.h"
#include "veloxquant/builder.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

/// visit(value) of the field of that name in the options struct, if it has one.
template <class Visit>
void in_struct(const KVCacheConfig& config, std::string_view name, Visit&& visit) {
  if (!config.options->has_value()) return;
  std::visit(
      [&](const auto& options) {
        options.for_each_field(options, [&](std::string_view field, const auto& value) {
          if (field == name) visit(to_value(value));
        });
      },
      **config.options);
}

std::optional<OptionValue> struct_value(const KVCacheConfig& config, std::string_view name) {
  std::optional<OptionValue> found;
  in_struct(config, name, [&](OptionValue value) { found = std::move(value); });
  return found;
}

/// The flat value and whether it was set; nothing for objects and other names.
std::optional<std::pair<OptionValue, bool>> flat_value(const KVCacheConfig& config, std::string_view name) {
  std::optional<std::pair<OptionValue, bool>> found;
  KVCacheConfig::for_each_field(config, [&]<class T>(std::string_view field, const Field<T>& value) {
    if constexpr (is_value<T>) {
      if (field == name) found.emplace(to_value(value.get()), value.explicitly_set());
    }
  });
  return found;
}

std::string_view struct_name(const MethodOptions& options) {
  return std::visit([](const auto& held) { return std::decay_t<decltype(held)>::kName; }, options);
}

/// The row that says what an extension may be: the method's own, or that of any method that has it.
const OptionSpec* extension_row(std::string_view method, std::string_view name) {
  if (const OptionSpec* row = find_row(general_options(), name)) return row;
  const OptionSpec* found = nullptr;
  for (const MethodDef* def : method_table()) {
    const OptionSpec* row = find_row(def->options, name);
    if (row != nullptr && (found == nullptr || def->name == method)) found = row;
  }
  return found;
}

bool reads(const MethodDef& def, std::string_view name) {
  return find_row(def.options, name) != nullptr || find_row(general_options(), name) != nullptr;
}

std::vector<std::string> owners_of(std::string_view name) {
  std::vector<std::string> owners;
  for (const MethodDef* def : method_table()) {
    if (find_row(def->options, name) != nullptr) owners.emplace_back(def->name);
  }
  return owners;
}

std::vector<std::string> known_names() {
  std::vector<std::string> names = extension_names();
  for (const FlatField& field : flat_fields()) names.emplace_back(field.name);
  return names;
}

using Problems = std::vector<std::string>;
using Names = std::set<std::string, std::less<>>;

// Types and ranges, whatever the method. `bad` gets the names of what is wrong.
Problems value_problems(const KVCacheConfig& config, Names& bad) {
  Problems problems;
  const auto check = [&](const OptionSpec& spec, const OptionValue& value) {
    const std::optional<std::string> problem = option_problem(spec, value);
    if (problem && bad.emplace(spec.name).second) problems.push_back(*problem);
  };
  for (const FlatField& field : flat_fields()) {
    if (field.spec == nullptr || field.name == "method") continue;
    check(*field.spec, flat_value(config, field.name)->first);
    in_struct(config, field.name, [&](const OptionValue& value) { check(*field.spec, value); });
  }
  for (const auto& [name, value] : config.extensions) {
    const OptionSpec* row = find_field(name) == nullptr ? extension_row(config.method.get(), name) : nullptr;
    if (row == nullptr) {
      problems.push_back(find_field(name) == nullptr ? unknown_field(name)
                                                     : fmt::format("extensions: {} is a field of its own", name));
    } else {
      check(*row, value);
    }
  }
  for (const auto& observer : config.observers.get()) {
    if (observer == nullptr) problems.push_back("observers: got null, allowed observers");
  }
  if (config.store.get() != nullptr) problems.push_back("store: artifacts are not read yet, allowed none");
  if (!config.observers->empty()) {
    problems.push_back(
        fmt::format("observers: got {}, allowed none: events are not sent yet", config.observers->size()));
  }
  return problems;
}

// Fills the options of the method and says what does not fit them; what is bad already is left out.
Problems fill(const KVCacheConfig& config, MethodSpec& spec, const Names& bad) {
  Problems problems;
  const MethodDef& def = *spec.def;
  if (config.options->has_value() && struct_name(**config.options) != def.options_struct) {
    problems.push_back(fmt::format("options: got {}, allowed {} for {}", struct_name(**config.options),
                                   def.options_struct.empty() ? "none" : def.options_struct, def.name));
    return problems;
  }
  const std::vector<OptionSpec> rows = spec.options.specs();
  for (const OptionSpec& row : rows) {
    const KVCacheConfig::Origin origin = config.origin(row.name);
    if (origin == KVCacheConfig::Origin::defaulted || bad.contains(row.name)) continue;
    if (const std::optional<std::string> problem = spec.options.set(row.name, config.get(row.name))) {
      problems.push_back(fmt::format("{}: {}", def.name, *problem));
    }
  }
  return problems;
}

std::vector<std::string> shape_problems(const KVCacheConfig& config, const MethodSpec& spec) {
  const auto dim = static_cast<int>(config.head_dim.get());
  return method_problems(spec, {.dim_k = dim, .dim_v = dim});
}

}  // namespace

std::string unknown_field(std::string_view name) {
  const std::vector<std::string> names = known_names();
  const std::string near = nearest(name, names);
  return fmt::format("unknown field {}{}", quote(name), near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

const OptionSpec& KVCacheConfig::row(std::string_view name) const {
  const FlatField* field = find_field(name);
  const OptionSpec* found = field != nullptr ? field->spec : extension_row(method.get(), name);
  if (found != nullptr) return *found;
  throw QuantizerConfigError(field != nullptr ? fmt::format("{}: is an object, not a value", name)
                                              : unknown_field(name));
}

void KVCacheConfig::set(std::string_view name, const OptionValue& value) {
  const FlatField* field = find_field(name);
  if (const std::optional<std::string> problem = option_problem(row(name), value)) throw QuantizerConfigError(*problem);
  if (field == nullptr) {
    extensions.insert_or_assign(std::string(name), value);
    return;
  }
  for_each_field(*this, [&]<class T>(std::string_view other, Field<T>& target) {
    if constexpr (is_value<T>) {
      if (other == name) target = from_value<T>(value);
    }
  });
}

KVCacheConfig::Origin KVCacheConfig::origin(std::string_view name) const {
  const auto flat = flat_value(*this, name);
  if (!flat) return extensions.contains(name) ? Origin::extension : Origin::defaulted;
  if (flat->second) return Origin::flat;
  return struct_value(*this, name) ? Origin::options_struct : Origin::defaulted;
}

OptionValue KVCacheConfig::get(std::string_view name) const {
  if (const auto flat = flat_value(*this, name)) {
    if (flat->second) return flat->first;
    return struct_value(*this, name).value_or(flat->first);
  }
  if (const auto it = extensions.find(name); it != extensions.end()) return it->second;
  return row(name).def;
}

std::vector<std::string> KVCacheConfig::problems() const {
  Names bad;
  Problems found = value_problems(*this, bad);
  const IntegerList* bits = std::get_if<IntegerList>(&bit_width_inlier.get());
  if (bits != nullptr && bad.emplace("bit_width_inlier").second) {
    found.push_back(fmt::format(
        "bit_width_inlier: got {} numbers, allowed one; use for_model, which has a layer for each", bits->size()));
  }
  const MethodDef* def = find_method(method.get());
  if (def == nullptr) {
    found.push_back("method: " + unknown_method(method.get()));
    return found;
  }
  if (sliding_window->has_value() && !def->standalone && !bad.contains("sliding_window")) {
    found.push_back(
        fmt::format("sliding_window: got {}, allowed none with {}, which stores layers (methods that take it: {})",
                    **sliding_window, def->name, listed(standalone_methods())));
  }
  MethodSpec spec = default_spec(*def);
  Problems more = fill(*this, spec, bad);
  // Rules between values need values that are right by themselves.
  if (found.empty() && more.empty()) more = shape_problems(*this, spec);
  found.insert(found.end(), more.begin(), more.end());
  return found;
}

std::vector<std::string> KVCacheConfig::notes() const {
  std::vector<std::string> lines;
  const MethodDef* def = find_method(method.get());
  if (def == nullptr) return lines;
  const auto foreign = [&](std::string_view name) {
    const std::vector<std::string> owners = owners_of(name);
    if (reads(*def, name) || owners.empty()) return;
    lines.push_back(fmt::format("{}: has no effect with {}; it belongs to {}", name, def->name, listed(owners)));
  };
  for (const FlatField& field : flat_fields()) {
    const auto flat = flat_value(*this, field.name);
    if (!flat || !flat->second) continue;
    foreign(field.name);
    const std::optional<OptionValue> other = struct_value(*this, field.name);
    if (other && *other != flat->first) {
      lines.push_back(fmt::format("{}: {} is taken and not {} of {}", field.name, to_string(flat->first),
                                  to_string(*other), struct_name(**options)));
    }
  }
  for (const auto& [name, value] : extensions) foreign(name);
  return lines;
}

std::string KVCacheConfig::describe() const {
  std::string text = method.get();
  const MethodDef* def = find_method(method.get());
  if (def == nullptr) return text + ": unknown method";
  std::vector<std::string> values;
  const MethodSpec spec = default_spec(*def);
  for (const OptionSpec& row : spec.options.specs()) {
    const OptionValue value = get(row.name);
    if (value != row.def) values.push_back(fmt::format("{}={}", row.name, to_string(value)));
  }
  if (!values.empty()) text += fmt::format("({})", fmt::join(values, ", "));
  for (const std::string& note : notes()) text += "\n" + note;
  return text;
}

MethodSpec method_spec(const KVCacheConfig& config) {
  std::vector<std::string> problems = config.problems();
  if (!problems.empty()) throw QuantizerConfigError(std::move(problems));
  MethodSpec spec = default_spec(*find_method(config.method.get()));
  VQ_CHECK(fill(config, spec, {}).empty());
  return spec;
}

}  // namespace veloxquant
