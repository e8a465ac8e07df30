#include "veloxquant/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/option_rows.h"
#include "core/text.h"

namespace veloxquant {
namespace {

/// "kivi_group_size: got '0', allowed 1..1048576".
std::string problem_of(const OptionSpec& spec, std::string_view given) {
  return fmt::format("{}: got {}, allowed {}", spec.name, quote(given), spec.range_text());
}

/// False for NaN.
bool number_in_range(const OptionSpec& spec, double x) {
  return (spec.min_excluded ? x > spec.min : x >= spec.min) && x <= spec.max;
}

/// As many numbers as the shape says, and not none.
bool fills_shape(const ArrayValue& array) {
  auto left = static_cast<int64_t>(array.data.size());
  for (int64_t n : array.shape) {
    if (n <= 0 || left % n != 0) return false;
    left /= n;
  }
  return left == 1;
}

bool in_range(const OptionSpec& spec, const OptionValue& value) {
  switch (spec.type) {
    case OptionType::boolean:
      return std::holds_alternative<bool>(value);
    case OptionType::integer: {
      const int64_t* i = std::get_if<int64_t>(&value);
      if (i == nullptr) return false;
      if (!spec.allowed.empty()) return std::ranges::find(spec.allowed, *i) != spec.allowed.end();
      return number_in_range(spec, static_cast<double>(*i));
    }
    case OptionType::real: {
      if (const int64_t* i = std::get_if<int64_t>(&value)) return number_in_range(spec, static_cast<double>(*i));
      const double* d = std::get_if<double>(&value);
      return d != nullptr && number_in_range(spec, *d);
    }
    case OptionType::choice: {
      const std::string* s = std::get_if<std::string>(&value);
      return s != nullptr && std::ranges::find(spec.choices, *s) != spec.choices.end();
    }
    case OptionType::text:
      return std::holds_alternative<std::string>(value);
    case OptionType::integers: {
      const auto fits = [&](int64_t i) { return number_in_range(spec, static_cast<double>(i)); };
      const IntegerList* list = std::get_if<IntegerList>(&value);
      return list != nullptr && !list->empty() && std::ranges::all_of(*list, fits);
    }
    case OptionType::array: {
      const ArrayValue* array = std::get_if<ArrayValue>(&value);
      return array != nullptr && fills_shape(*array) &&
             std::ranges::all_of(array->data, [](float x) { return std::isfinite(x); });
    }
    case OptionType::map:
      return std::holds_alternative<MapValue>(value);
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

/// Numbers between colons or, as JSON writes them, between commas in brackets.
std::optional<OptionValue> integer_list(std::string_view text) {
  const bool bracketed = text.size() >= 2 && text.front() == '[' && text.back() == ']';
  if (bracketed) text = text.substr(1, text.size() - 2);
  IntegerList list;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(bracketed ? ',' : ':', begin), text.size());
    const std::optional<OptionValue> value = number<int64_t>(trimmed(text.substr(begin, end - begin)));
    if (!value) return std::nullopt;
    list.push_back(std::get<int64_t>(*value));
    begin = end + 1;
  }
  return OptionValue(std::move(list));
}

std::optional<OptionValue> parsed(const OptionSpec& spec, std::string_view text) {
  if (spec.nullable() && text == "none") return OptionValue();
  switch (spec.type) {
    case OptionType::boolean:
      if (text != "true" && text != "false") return std::nullopt;
      return OptionValue(text == "true");
    case OptionType::integer:
      return number<int64_t>(text);
    case OptionType::real:
      return number<double>(text);
    case OptionType::choice:
    case OptionType::text:
      return OptionValue(std::string(text));
    case OptionType::integers:
      return integer_list(text);
    case OptionType::array:
    case OptionType::map:
      break;  // no text for them
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
  if (const IntegerList* list = std::get_if<IntegerList>(&value)) return fmt::format("{}", fmt::join(*list, ":"));
  if (const ArrayValue* a = std::get_if<ArrayValue>(&value)) return fmt::format("array[{}]", fmt::join(a->shape, ","));
  if (const MapValue* map = std::get_if<MapValue>(&value)) {
    std::vector<std::string> entries;
    for (const auto& [key, entry] : *map) {
      entries.push_back(key + ": " + std::visit([](const auto& x) { return fmt::format("{}", x); }, entry));
    }
    return fmt::format("{{{}}}", fmt::join(entries, ", "));
  }
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
    case OptionType::text:
      text = "any text";
      break;
    case OptionType::real:
      text = min_excluded ? fmt::format("above {}, up to {}", min, max) : fmt::format("{}..{}", min, max);
      break;
    case OptionType::integer:
    case OptionType::integers:
      text = fmt::format("{:.0f}..{:.0f}", min, max);
      if (min <= -0x1p63 && max >= 0x1p63) text = "any 64-bit integer";
      if (!allowed.empty()) text = fmt::format("{}", fmt::join(allowed, " | "));
      if (type == OptionType::integers) {
        const bool has_default = std::holds_alternative<IntegerList>(def);
        text =
            fmt::format("one or more of {}, {}", text, has_default ? "as in " + to_string(def) : "with colons between");
      }
      break;
    case OptionType::array:
      text = "an array of finite numbers that fill its shape, in JSON";
      break;
    case OptionType::map:
      text = "a JSON object of numbers and texts";
      break;
  }
  return nullable() ? text + " | none" : text;
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

OptionSpec text_option(std::string_view name, std::string_view alias, std::string_view def, std::string_view meaning) {
  return {name, alias, OptionType::text, std::string(def), 0, 0, {}, meaning};
}
OptionSpec integers_option(std::string_view name, std::string_view alias, IntegerList def, double min, double max,
                           std::string_view meaning) {
  return {name, alias, OptionType::integers, std::move(def), min, max, {}, meaning};
}
OptionSpec array_option(std::string_view name, std::string_view meaning) {
  return {name, {}, OptionType::array, {}, 0, 0, {}, meaning};
}
OptionSpec map_option(std::string_view name, std::string_view meaning) {
  return {name, {}, OptionType::map, {}, 0, 0, {}, meaning};
}

OptionSpec OptionSpec::none_by_default() const {
  OptionSpec spec = *this;
  spec.def = {};
  return spec;
}
OptionSpec OptionSpec::or_none() const {
  OptionSpec spec = *this;
  spec.none_allowed = true;
  return spec;
}
OptionSpec OptionSpec::above_min() const {
  OptionSpec spec = *this;
  spec.min_excluded = true;
  return spec;
}
OptionSpec OptionSpec::only(IntegerList values) const {
  OptionSpec spec = *this;
  spec.allowed = std::move(values);
  return spec;
}

OptionSpec OptionSpec::beside_struct() const {
  OptionSpec spec = *this;
  spec.flat_only = true;
  return spec;
}

std::string_view to_string(OptionType type) {
  switch (type) {
    case OptionType::boolean:
      return "boolean";
    case OptionType::integer:
      return "integer";
    case OptionType::real:
      return "real";
    case OptionType::choice:
      return "choice";
    case OptionType::text:
      return "text";
    case OptionType::integers:
      return "integers";
    case OptionType::array:
      return "array";
    case OptionType::map:
      return "map";
  }
  return "";
}

Options::Options(std::vector<OptionSpec> specs) : specs_(std::move(specs)) {
  for (const OptionSpec& spec : specs_) values_.emplace(spec.name, spec.def);
}

const OptionSpec* Options::find(std::string_view name) const { return find_row_or_alias(specs_, name); }

std::optional<std::string> option_problem(const OptionSpec& spec, const OptionValue& value) {
  if (std::holds_alternative<std::monostate>(value)) {
    return spec.nullable() ? std::nullopt : std::optional(problem_of(spec, "none"));
  }
  const IntegerList* list = std::get_if<IntegerList>(&value);
  const bool legal = spec.per_layer && list != nullptr
                         ? !list->empty() && std::ranges::all_of(*list, [&](int64_t i) { return in_range(spec, i); })
                         : in_range(spec, value);
  return legal ? std::nullopt : std::optional(problem_of(spec, to_string(value)));
}

std::optional<std::string> Options::set(std::string_view name, const OptionValue& value) {
  const OptionSpec* spec = find(name);
  if (spec == nullptr) return fmt::format("unknown option {}", quote(name));
  if (spec->per_layer && std::holds_alternative<IntegerList>(value)) {
    return problem_of(*spec, to_string(value)) + "; a list needs a whole model (for_model)";
  }
  if (const std::optional<std::string> problem = option_problem(*spec, value)) return problem;
  OptionValue taken = value;
  if (spec->type == OptionType::real && std::holds_alternative<int64_t>(value)) {
    taken = static_cast<double>(std::get<int64_t>(value));
  }
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

const std::string& Options::text(std::string_view name) const { return choice(name); }

const IntegerList& Options::integers(std::string_view name) const {
  VQ_CHECK(has_value(name), name);
  return std::get<IntegerList>(value(name));
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
