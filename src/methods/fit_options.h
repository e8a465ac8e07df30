// Options of methods that fit a basis to the rows of a sequence.
#pragma once

#include "veloxquant/options.h"

namespace veloxquant {

inline OptionSpec fit_min_option() {
  return integer_option("fit_min", "", 1, 1, 1 << 30, "rows that a basis needs; none: by its width, 128..512")
      .none_by_default();
}
inline OptionSpec fit_rows_option() {
  return integer_option("fit_rows", "", 1, 1, 1 << 30,
                        "first rows that a basis is fitted to, however they came; none: those at hand")
      .none_by_default();
}
inline OptionSpec fit_payoff_option() {
  return boolean_option("fit_payoff", "", true, "rows stay exact till packing them saves more than the basis takes");
}

}  // namespace veloxquant
