// One configuration for all methods: the original system's 225 fields by their names, in its order, with its defaults.
//
//   KVCacheConfig config{.method = "h2o", .h2o_budget = 1024};
//   config.seed = 7;
//
// Precedence of a method's field: the flat field where it was set, even to its default; then the options struct; then
// the default. What only this library has stands in `extensions`, by name.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "veloxquant/fields.h"
#include "veloxquant/option_structs.h"
#include "veloxquant/registry.h"

namespace veloxquant {

class ArtifactStore;
class QuantizationObserver;

/// One number for all layers, or one for each attention layer.
using IntegerOrList = std::variant<int64_t, IntegerList>;

struct DefaultTag {};
inline constexpr DefaultTag kDefault;

/// A value that knows whether it was set.
template <class T>
class Field {
 public:
  Field() = default;
  template <class U>
  Field(DefaultTag, U&& value) : value_(std::forward<U>(value)) {}
  /// Sets.
  template <class U>
  requires(std::constructible_from<T, U> && !std::same_as<std::remove_cvref_t<U>, Field> &&
           !std::same_as<std::remove_cvref_t<U>, DefaultTag> &&
           (!std::integral<T> || (std::integral<std::remove_cvref_t<U>> &&
                                  std::same_as<T, bool> == std::same_as<std::remove_cvref_t<U>, bool>)))
      Field(U&& value)
      : value_(std::forward<U>(value)), set_(true) {}

  const T& get() const { return value_; }
  operator const T&() const { return value_; }
  const T& operator*() const { return value_; }
  const T* operator->() const { return &value_; }
  bool explicitly_set() const { return set_; }
  bool operator==(const Field&) const = default;
  template <class U>
  requires(!std::same_as<U, Field> && std::equality_comparable_with<T, U>) bool operator==(const U& value) const {
    return value_ == value;
  }

 private:
  T value_{};
  bool set_ = false;
};

struct KVCacheConfig {
#include "veloxquant/config_fields.inc"

  /// Options of this library alone, by name, e.g. {"flush_rule", "aligned_window"}.
  std::map<std::string, OptionValue, std::less<>> extensions{};

  bool operator==(const KVCacheConfig&) const = default;

  /// Sets a field or an extension by name. Throws QuantizerConfigError for unknown names (the nearest is named), wrong
  /// types and values out of range.
  void set(std::string_view name, const OptionValue& value);
  /// The value that holds for the method: flat field, options struct, default. Throws QuantizerConfigError for unknown
  /// names.
  OptionValue get(std::string_view name) const;
  /// What the field or extension may be, for the method where methods differ. Throws for unknown names.
  const OptionSpec& row(std::string_view name) const;
  /// Where the value came from.
  enum class Origin : uint8_t { defaulted, options_struct, flat, extension };
  Origin origin(std::string_view name) const;

  /// Everything that is wrong, a line each: types and ranges of all fields, whatever the method; rules of the selected
  /// method. Those that need more of the layer than its head dimension wait for it.
  std::vector<std::string> problems() const;
  /// What was set and has no effect with this method, a line each.
  std::vector<std::string> notes() const;
  /// The method with all values that differ from its defaults, then the notes; a line each.
  std::string describe() const;
};

/// The method and its options, ready to be built. Throws QuantizerConfigError with all problems; a list in
/// bit_width_inlier is one (for_model takes it).
MethodSpec method_spec(const KVCacheConfig& config);

/// One flat object with everything that was set: fields, extensions, and `options` as an object of its own. `store` and
/// `observers` are not written.
std::string to_json(const KVCacheConfig& config);
/// Reads what to_json writes. Throws QuantizerConfigError with all problems: unknown names (the nearest is named),
/// wrong types, ranges, text that is no JSON, more than 64 levels, more than 64 MiB.
KVCacheConfig config_from_json(std::string_view text);

}  // namespace veloxquant

template <>
struct std::hash<veloxquant::KVCacheConfig> {
  size_t operator()(const veloxquant::KVCacheConfig& config) const {
    return std::hash<std::string>()(veloxquant::to_json(config));
  }
};
