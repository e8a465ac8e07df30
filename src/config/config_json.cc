#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "config/option_json.h"
#include "config/values.h"
#include "core/text.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kDeepest = 64;
constexpr size_t kLongest = size_t{64} << 20;

ordered_json nested(const ArrayValue& array, size_t axis, size_t& next) {
  ordered_json list = ordered_json::array();
  for (int64_t i = 0; i < array.shape[axis]; ++i) {
    if (axis + 1 == array.shape.size()) {
      list.push_back(array.data[next++]);
    } else {
      list.push_back(nested(array, axis + 1, next));
    }
  }
  return list;
}

// False where lists of one depth differ in length or hold something else than numbers.
bool read_array(const json& list, size_t axis, ArrayValue& array) {
  if (!list.is_array()) {
    array.data.push_back(list.is_number() ? list.get<float>() : 0.0f);
    return list.is_number() && axis == array.shape.size();
  }
  if (axis >= 8 || (axis > 0 && axis >= array.shape.size() && !array.data.empty())) return false;
  if (axis == array.shape.size()) array.shape.push_back(static_cast<int64_t>(list.size()));
  if (array.shape[axis] != static_cast<int64_t>(list.size())) return false;
  for (const json& item : list) {
    if (!read_array(item, axis + 1, array)) return false;
  }
  return true;
}

std::optional<OptionValue> integer_list(const json& list) {
  IntegerList numbers;
  for (const json& item : list) {
    if (!item.is_number_integer()) return std::nullopt;
    if (item.is_number_unsigned() && item.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return std::nullopt;
    }
    numbers.push_back(item.get<int64_t>());
  }
  return OptionValue(std::move(numbers));
}

std::optional<OptionValue> map_value(const json& object) {
  MapValue map;
  for (const auto& [key, entry] : object.items()) {
    if (entry.is_number()) {
      map.emplace(key, entry.get<double>());
    } else if (entry.is_string()) {
      map.emplace(key, entry.get<std::string>());
    } else {
      return std::nullopt;
    }
  }
  return OptionValue(std::move(map));
}

/// Nothing where JSON has no such value of the option.
std::optional<OptionValue> value_of(const OptionSpec& spec, const json& value) {
  if (value.is_null()) return OptionValue();
  if (value.is_boolean()) return OptionValue(value.get<bool>());
  if (value.is_string()) return OptionValue(value.get<std::string>());
  if (value.is_number_float()) return OptionValue(value.get<double>());
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return std::nullopt;
  }
  if (value.is_number_integer()) return OptionValue(value.get<int64_t>());
  if (value.is_object()) return spec.type == OptionType::map ? map_value(value) : std::nullopt;
  if (spec.type != OptionType::array) return integer_list(value);
  ArrayValue array;
  if (!read_array(value, 0, array)) return std::nullopt;
  return OptionValue(std::move(array));
}

std::string brief(const json& value) {
  if (value.is_structured() && value.size() > 16) return value.is_array() ? "a list" : "an object";
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

class Reader {
 public:
  KVCacheConfig read(std::string_view text) {
    if (text.size() > kLongest) {
      throw QuantizerConfigError(fmt::format("configuration: got {} bytes of JSON, allowed {}", text.size(), kLongest));
    }
    const json document = parse(text);
    if (!document.is_object()) {
      throw QuantizerConfigError(fmt::format("configuration: got {}, allowed a JSON object", quote(brief(document))));
    }
    // The method first: it says what an extension may be and which options struct is meant.
    if (document.contains("method")) field(config_, "method", document["method"]);
    for (const auto& [name, value] : document.items()) {
      if (name == "options") {
        options(value);
      } else if (name == "store" || name == "observers") {
        problems_.push_back(name + ": can't be given in JSON");
      } else if (name != "method") {
        field(config_, name, value);
      }
    }
    for (std::string& problem : config_.problems()) problems_.push_back(std::move(problem));
    if (!problems_.empty()) throw QuantizerConfigError(std::move(problems_));
    return std::move(config_);
  }

 private:
  json parse(std::string_view text) {
    std::vector<std::set<std::string>> seen;
    const auto guard = [&](int depth, json::parse_event_t event, json& value) {
      if (depth > kDeepest) {
        throw QuantizerConfigError(fmt::format("configuration: JSON of more than {} levels", kDeepest));
      }
      if (event == json::parse_event_t::key) {
        seen.resize(static_cast<size_t>(depth) + 1);
        if (!seen[static_cast<size_t>(depth)].insert(value.get<std::string>()).second) {
          problems_.push_back(fmt::format("{} is given twice", quote(value.get<std::string>())));
        }
      } else if (event == json::parse_event_t::object_start && static_cast<size_t>(depth) + 1 < seen.size()) {
        seen[static_cast<size_t>(depth) + 1].clear();
      }
      return true;
    };
    try {
      return json::parse(text, guard);
    } catch (const json::exception& error) {
      throw QuantizerConfigError(fmt::format("configuration: {}", reason(error.what())));
    }
  }

  // Without the library's own tag in brackets; foreign bytes made safe.
  static std::string reason(std::string_view what) {
    const size_t tag = what.find("] ");
    if (tag != std::string_view::npos) what.remove_prefix(tag + 2);
    std::string text;
    for (char c : what) text += c >= 0x20 && c < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", c & 0xff);
    return text;
  }

  void field(KVCacheConfig& config, const std::string& name, const json& value) {
    const FlatField* flat = find_field(name);
    const OptionSpec* spec = flat != nullptr ? flat->spec : nullptr;
    if (spec == nullptr && std::ranges::binary_search(extension_names(), name)) spec = &config.row(name);
    if (spec == nullptr) {
      problems_.push_back(unknown_field(name));
      return;
    }
    const std::optional<OptionValue> taken = value_of(*spec, value);
    const std::optional<std::string> problem = taken ? option_problem(*spec, *taken) : std::nullopt;
    if (!taken || problem) {
      problems_.push_back(fmt::format("{}: got {}, allowed {}", name, quote(brief(value)), spec->range_text()));
    } else {
      config.set(name, *taken);
    }
  }

  // The struct of the method, filled by name.
  void options(const json& object) {
    if (object.is_null()) return;
    const MethodDef* def = find_method(config_.method.get());
    if (def == nullptr) return;  // said elsewhere
    if (!object.is_object() || def->options_struct.empty()) {
      problems_.push_back(fmt::format(
          "options: got {}, allowed {}", quote(brief(object)),
          def->options_struct.empty() ? "none: " + std::string(def->name) + " has no struct" : "an object"));
      return;
    }
    MethodOptions filled = default_options(def->options_struct);
    std::visit([&](auto& target) { fill(target, object); }, filled);
    config_.options = std::move(filled);
  }

  template <class Struct>
  void fill(Struct& target, const json& object) {
    std::set<std::string, std::less<>> known;
    target.for_each_field(target, [&]<class T>(std::string_view name, T& member) {
      known.emplace(name);
      const auto it = object.find(name);
      if (it == object.end()) return;
      const OptionSpec& spec = *find_field(name)->spec;
      const std::optional<OptionValue> taken = value_of(spec, *it);
      if (!taken || option_problem(spec, *taken)) {
        problems_.push_back(fmt::format("options.{}: got {}, allowed {}", name, quote(brief(*it)), spec.range_text()));
      } else {
        member = from_value<T>(*taken);
      }
    });
    for (const auto& [name, value] : object.items()) {
      if (known.contains(name)) continue;
      const std::vector<std::string> names(known.begin(), known.end());
      problems_.push_back(
          fmt::format("options: {} has no field {} (fields: {})", Struct::kName, quote(name), listed(names)));
    }
  }

  template <size_t I = 0>
  static MethodOptions default_options(std::string_view name) {
    if constexpr (I < std::variant_size_v<MethodOptions>) {
      using Struct = std::variant_alternative_t<I, MethodOptions>;
      if (Struct::kName == name) return Struct{};
      return default_options<I + 1>(name);
    } else {
      throw QuantizerConfigError(fmt::format("options: no struct {}", name));
    }
  }

  KVCacheConfig config_;
  std::vector<std::string> problems_;
};

}  // namespace

ordered_json json_of(const OptionValue& value) {
  return std::visit(
      [](const auto& held) -> ordered_json {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, ArrayValue>) {
          size_t next = 0;
          return held.shape.empty() ? ordered_json::array() : nested(held, 0, next);
        } else if constexpr (std::is_same_v<T, MapValue>) {
          ordered_json object = ordered_json::object();
          for (const auto& [key, entry] : held)
            object[key] = std::visit([](const auto& x) { return ordered_json(x); }, entry);
          return object;
        } else {
          return held;
        }
      },
      value);
}

std::string to_json(const KVCacheConfig& config) {
  ordered_json document = ordered_json::object();
  KVCacheConfig::for_each_field(config, [&]<class T>(std::string_view name, const Field<T>& field) {
    if (!field.explicitly_set()) return;
    if constexpr (is_value<T>) {
      document[std::string(name)] = json_of(to_value(field.get()));
    } else if constexpr (std::is_same_v<T, std::optional<MethodOptions>>) {
      if (!field->has_value()) return;
      ordered_json object = ordered_json::object();
      std::visit(
          [&](const auto& options) {
            options.for_each_field(options, [&](std::string_view member, const auto& value) {
              object[std::string(member)] = json_of(to_value(value));
            });
          },
          **field);
      document[std::string(name)] = object;
    }
  });
  for (const auto& [name, value] : config.extensions) document[name] = json_of(value);
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

KVCacheConfig config_from_json(std::string_view text) { return Reader().read(text); }

}  // namespace veloxquant
