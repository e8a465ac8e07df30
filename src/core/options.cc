#include "veloxquant/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/text.h"

namespace veloxquant {
namespace {

bool nullable(const OptionSpec& spec) { return std::holds_alternative<std::monostate>(spec.def); }

/// "kivi_group_size: got '0', allowed 1..1048576".
std::string problem_of(const OptionSpec& spec, std::string_view given) {
  return fmt::format("{}: got {}, allowed {}", spec.name, quote(given), spec.range_text());
}

bool in_range(const OptionSpec& spec, const OptionValue& value) {
  switch (spec.type) {
    case OptionType::boolean:
      return std::holds_alternative<bool>(value);
    case OptionType::integer: {
      const int64_t* i = std::get_if<int64_t>(&value);
      return i != nullptr && static_cast<double>(*i) >= spec.min && static_cast<double>(*i) <= spec.max;
    }
    case OptionType::real: {
      const double* d = std::get_if<double>(&value);
      return d != nullptr && *d >= spec.min && *d <= spec.max;  // false for NaN
    }
    case OptionType::choice: {
      const std::string* s = std::get_if<std::string>(&value);
      return s != nullptr && std::ranges::find(spec.choices, *s) != spec.choices.end();
    }
  }
  return false;
}

/// The whole of `text` as a number, or nothing.
template <class Number>
std::optional<OptionValue> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return OptionValue(value);
}

std::optional<OptionValue> parsed(const OptionSpec& spec, std::string_view text) {
  if (nullable(spec) && text == "none") return OptionValue();
  switch (spec.type) {
    case OptionType::boolean:
      if (text != "true" && text != "false") return std::nullopt;
      return OptionValue(text == "true");
    case OptionType::integer:
      return number<int64_t>(text);
    case OptionType::real:
      return number<double>(text);
    case OptionType::choice:
      return OptionValue(std::string(text));
  }
  return std::nullopt;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Insertions, deletions and replacements between two names, letter case aside.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (lower(a[i]) == lower(b[j]) ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string to_string(const OptionValue& value) {
  if (const bool* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const int64_t* i = std::get_if<int64_t>(&value)) return fmt::format("{}", *i);
  if (const double* d = std::get_if<double>(&value)) return fmt::format("{}", *d);
  if (const std::string* s = std::get_if<std::string>(&value)) return *s;
  return "none";
}

std::string OptionSpec::range_text() const {
  std::string text;
  switch (type) {
    case OptionType::boolean:
      text = "true | false";
      break;
    case OptionType::choice:
      text = fmt::format("{}", fmt::join(choices, " | "));
      break;
    case OptionType::real:
      text = fmt::format("{}..{}", min, max);
      break;
    case OptionType::integer:
      text = fmt::format("{:.0f}..{:.0f}", min, max);
      if (min <= -0x1p63 && max >= 0x1p63) text = "any 64-bit integer";
      break;
  }
  return nullable(*this) ? text + " | none" : text;
}

OptionSpec integer_option(std::string_view name, std::string_view alias, int64_t def, double min, double max,
                          std::string_view meaning) {
  return {name, alias, OptionType::integer, def, min, max, {}, meaning};
}
OptionSpec real_option(std::string_view name, std::string_view alias, double def, double min, double max,
                       std::string_view meaning) {
  return {name, alias, OptionType::real, def, min, max, {}, meaning};
}
OptionSpec boolean_option(std::string_view name, std::string_view alias, bool def, std::string_view meaning) {
  return {name, alias, OptionType::boolean, def, 0, 0, {}, meaning};
}
OptionSpec choice_option(std::string_view name, std::string_view alias, std::vector<std::string_view> choices,
                         std::string_view meaning) {
  std::string def(choices.front());
  return {name, alias, OptionType::choice, std::move(def), 0, 0, std::move(choices), meaning};
}

Options::Options(std::vector<OptionSpec> specs) : specs_(std::move(specs)) {
  for (const OptionSpec& spec : specs_) values_.emplace(spec.name, spec.def);
}

const OptionSpec* Options::find(std::string_view name) const {
  if (name.empty()) return nullptr;
  const auto it = std::ranges::find_if(specs_, [&](const OptionSpec& s) { return s.name == name || s.alias == name; });
  return it == specs_.end() ? nullptr : &*it;
}

std::optional<std::string> Options::set(std::string_view name, const OptionValue& value) {
  const OptionSpec* spec = find(name);
  if (spec == nullptr) return fmt::format("unknown option {}", quote(name));
  OptionValue taken = value;
  if (spec->type == OptionType::real && std::holds_alternative<int64_t>(value)) {
    taken = static_cast<double>(std::get<int64_t>(value));
  }
  const bool none = std::holds_alternative<std::monostate>(taken);
  if (none ? !nullable(*spec) : !in_range(*spec, taken)) return problem_of(*spec, to_string(value));
  values_.find(spec->name)->second = std::move(taken);
  explicit_.emplace(spec->name);
  return std::nullopt;
}

std::optional<std::string> Options::set_text(std::string_view name, std::string_view text) {
  const OptionSpec* spec = find(name);
  if (spec == nullptr) return fmt::format("unknown option {}", quote(name));
  const std::optional<OptionValue> value = parsed(*spec, trimmed(text));
  if (!value || set(name, *value)) return problem_of(*spec, text);
  return std::nullopt;
}

const OptionValue& Options::value(std::string_view name) const {
  const OptionSpec* spec = find(name);
  VQ_CHECK(spec != nullptr, name);
  return values_.find(spec->name)->second;
}

bool Options::has_value(std::string_view name) const {
  const bool has = !std::holds_alternative<std::monostate>(value(name));
  read_.emplace(find(name)->name);
  return has;
}

bool Options::explicitly_set(std::string_view name) const {
  const OptionSpec* spec = find(name);
  VQ_CHECK(spec != nullptr, name);
  return explicit_.contains(spec->name);
}

bool Options::boolean(std::string_view name) const {
  VQ_CHECK(has_value(name), name);
  return std::get<bool>(value(name));
}

int64_t Options::integer64(std::string_view name) const {
  VQ_CHECK(has_value(name), name);
  return std::get<int64_t>(value(name));
}

int Options::integer(std::string_view name) const {
  const int64_t wide = integer64(name);
  VQ_CHECK(wide >= std::numeric_limits<int>::min() && wide <= std::numeric_limits<int>::max(), name);
  return static_cast<int>(wide);
}

double Options::real(std::string_view name) const {
  VQ_CHECK(has_value(name), name);
  return std::get<double>(value(name));
}

const std::string& Options::choice(std::string_view name) const {
  VQ_CHECK(has_value(name), name);
  return std::get<std::string>(value(name));
}

std::vector<std::string> Options::unread() const {
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs_) {
    if (!read_.contains(spec.name)) names.emplace_back(spec.name);
  }
  return names;
}

std::string nearest(std::string_view given, std::span<const std::string> candidates) {
  constexpr size_t kLongest = 64;  // no name of ours is longer, and the distance costs length times length
  if (given.empty() || given.size() > kLongest) return {};
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(given, candidate);
    const size_t close = (std::max(given.size(), candidate.size()) + 2) / 3;
    if (distance <= close && (best == nullptr || distance < best_distance)) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? std::string() : *best;
}

}  // namespace veloxquant
