// Rules between the options of a method, and with the layer's shape: each that is broken gives one line with the field,
// its value and what is allowed.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "veloxquant/registry.h"

namespace veloxquant {

class Rules {
 public:
  explicit Rules(const Options& options) : options_(options) {}

  void that(bool holds, std::string_view name, std::string_view allowed) {
    if (!holds)
      broken_.push_back(fmt::format("{}: got {}, allowed {}", name, to_string(options_.value(name)), allowed));
  }
  /// Of a number that is no option.
  void that(bool holds, std::string_view name, int64_t given, std::string_view allowed) {
    if (!holds) broken_.push_back(fmt::format("{}: got {}, allowed {}", name, given, allowed));
  }
  /// The first number is not above the second.
  void ordered(std::string_view low, std::string_view high) {
    that(options_.integer64(low) <= options_.integer64(high), low,
         fmt::format("at most {} {}", high, options_.integer64(high)));
  }
  /// Rows that are never dropped leave room for others. Where none are protected the budget may be 0.
  void budget(std::string_view budget, std::initializer_list<std::string_view> held) {
    int64_t sum = 0;
    std::vector<std::string> names;
    for (std::string_view name : held) {
      sum += options_.integer64(name);
      names.push_back(fmt::format("{} {}", name, options_.integer64(name)));
    }
    that(sum == 0 || sum < options_.integer64(budget), budget, fmt::format("more than {}", fmt::join(names, " + ")));
  }
  /// An array, where it is given, has one of these shapes. True where it is given and has.
  bool shape(std::string_view name, const std::vector<std::vector<int64_t>>& allowed) {
    if (!options_.has_value(name)) return false;
    const std::vector<int64_t>& given = std::get<ArrayValue>(options_.value(name)).shape;
    std::vector<std::string> texts;
    for (const std::vector<int64_t>& shape : allowed) texts.push_back(fmt::format("[{}]", fmt::join(shape, ",")));
    const bool fits = std::ranges::find(allowed, given) != allowed.end();
    that(fits, name, fmt::format("{}", fmt::join(texts, " or ")));
    return fits;
  }

  std::vector<std::string> broken() { return std::move(broken_); }

 private:
  const Options& options_;
  std::vector<std::string> broken_;
};

}  // namespace veloxquant
