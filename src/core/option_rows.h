// Looking for a row in a table of options.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "veloxquant/options.h"

namespace veloxquant {

/// Null where there is none of this name.
inline const OptionSpec* find_row(std::span<const OptionSpec> rows, std::string_view name) {
  const auto it = std::ranges::find_if(rows, [&](const OptionSpec& row) { return row.name == name; });
  return it == rows.end() ? nullptr : &*it;
}

/// The same by name or alias.
inline const OptionSpec* find_row_or_alias(std::span<const OptionSpec> rows, std::string_view name) {
  if (name.empty()) return nullptr;
  const auto it =
      std::ranges::find_if(rows, [&](const OptionSpec& row) { return row.name == name || row.alias == name; });
  return it == rows.end() ? nullptr : &*it;
}

}  // namespace veloxquant
