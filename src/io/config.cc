#include "io/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "core/text.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

using nlohmann::json;

/// JSON proper, or what is wrong: the parser and the destructor of what it makes see no deep nesting. Other mistakes
/// are left to the parser.
std::string within_limits(std::string_view text) {
  constexpr int kDeepest = 64;
  constexpr size_t kLongest = size_t{16} << 20;
  if (text.size() > kLongest) {
    throw QuantizerConfigError(fmt::format("the configuration has {} bytes, allowed: up to {}", text.size(), kLongest));
  }
  std::string out;
  out.reserve(text.size());
  bool quoted = false;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\' && i + 1 < text.size()) {
      out += c;
      out += text[++i];
      continue;
    }
    if (c == '"') quoted = !quoted;
    if (!quoted) {
      if ((c == '{' || c == '[') && ++depth > kDeepest) {
        throw QuantizerConfigError(fmt::format("the configuration has more than {} levels at byte {}", kDeepest, i));
      }
      if (c == '}' || c == ']') --depth;
      bool replaced = false;
      for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
        if (!text.substr(i).starts_with(word)) continue;
        out += "null";
        i += word.size() - 1;
        replaced = true;
        break;
      }
      if (replaced) continue;
    }
    out += c;
  }
  return out;
}

std::string shown(const json& value) {
  if (value.is_number() || value.is_boolean()) return value.dump();
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  return fmt::format("of type {}", value.type_name());
}

}  // namespace

json parse_config(std::string_view text) {
  const std::string proper = within_limits(text);
  json parsed;
  try {
    parsed = json::parse(proper);
  } catch (const json::parse_error& error) {
    throw QuantizerConfigError(fmt::format("the configuration is not valid JSON at byte {}", error.byte));
  } catch (const json::exception&) {
    throw QuantizerConfigError("the configuration has a number that is too large");
  }
  if (!parsed.is_object()) {
    throw QuantizerConfigError(fmt::format("the configuration is of type {}, wanted: an object", parsed.type_name()));
  }
  return parsed;
}

std::string listed(Names names) { return fmt::format("{}", fmt::join(names, ", ")); }

Config::Found Config::find(Names names) const {
  for (const json* object : objects_) {
    bool absent = true;
    for (const std::string_view name : names) {
      const auto found = object->find(name);
      if (found == object->end()) continue;
      if (!found->is_null()) return {name, &*found};
      absent = false;
    }
    if (!absent) break;
  }
  return {};
}

void Config::wrong(const Found& found, std::string_view wanted) {
  problem(fmt::format("{}{} is {}, wanted: {}", path_, found.name, shown(*found.value), wanted));
}

void Config::missing(std::string_view what, Names names) {
  problem(fmt::format("{}{} is missing, looked for: {}", path_, what, listed(names)));
}

std::optional<int> Config::integer(const Found& found, int min, int max) {
  if (!found) return std::nullopt;
  const double value = found.value->is_number() ? found.value->get<double>() : std::nan("");
  if (value >= min && value <= max && value == std::floor(value)) return static_cast<int>(value);
  wrong(found, fmt::format("an integer in {}..{}", min, max));
  return std::nullopt;
}

std::optional<double> Config::number(const Found& found) {
  if (!found) return std::nullopt;
  if (found.value->is_number()) return found.value->get<double>();
  wrong(found, "a number");
  return std::nullopt;
}

std::optional<int> Config::integer(Names names, int min, int max) { return integer(find(names), min, max); }
std::optional<double> Config::number(Names names) { return number(find(names)); }

std::optional<std::string> Config::text(Names names) {
  const Found found = find(names);
  if (!found) return std::nullopt;
  if (found.value->is_string()) return found.value->get<std::string>();
  wrong(found, "a text");
  return std::nullopt;
}

bool Config::set(Names names) const {
  const Found found = find(names);
  if (!found) return false;
  if (found.value->is_boolean()) return found.value->get<bool>();
  if (found.value->is_number()) return found.value->get<double>() != 0;
  return !found.value->is_structured() || !found.value->empty();
}

}  // namespace veloxquant
