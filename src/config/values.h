// Between typed fields and option values.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "veloxquant/config.h"

namespace veloxquant {

/// Fields that are objects have no option value.
template <class T>
inline constexpr bool is_value = std::is_constructible_v<OptionValue, T>;
template <class T>
inline constexpr bool is_value<std::optional<T>> = std::is_constructible_v<OptionValue, T>;
template <>
inline constexpr bool is_value<IntegerOrList> = true;
template <>
inline constexpr bool is_value<std::optional<MethodOptions>> = false;

template <class T>
OptionValue to_value(const T& value) {
  return OptionValue(value);
}
template <class T>
OptionValue to_value(const std::optional<T>& value) {
  return value ? OptionValue(*value) : OptionValue();
}
inline OptionValue to_value(const IntegerOrList& value) {
  return std::visit([](const auto& held) { return OptionValue(held); }, value);
}

template <class T>
struct FromValue {
  static T of(const OptionValue& value) {
    if constexpr (std::is_same_v<T, double>) {
      if (const int64_t* i = std::get_if<int64_t>(&value)) return static_cast<double>(*i);
    }
    return std::get<T>(value);
  }
};
template <class T>
struct FromValue<std::optional<T>> {
  static std::optional<T> of(const OptionValue& value) {
    if (std::holds_alternative<std::monostate>(value)) return std::nullopt;
    return FromValue<T>::of(value);
  }
};
template <>
struct FromValue<IntegerOrList> {
  static IntegerOrList of(const OptionValue& value) {
    if (const IntegerList* list = std::get_if<IntegerList>(&value)) return *list;
    return std::get<int64_t>(value);
  }
};
/// Of a value that option_problem finds nothing wrong with.
template <class T>
T from_value(const OptionValue& value) {
  return FromValue<T>::of(value);
}

/// "unknown field 'h2o_buget'; did you mean 'h2o_budget'?"
std::string unknown_field(std::string_view name);

}  // namespace veloxquant
