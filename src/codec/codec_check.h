// Checks of the factories' arguments: all problems at once, before a codec exists.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "veloxquant/errors.h"

namespace veloxquant {

class ArgumentCheck {
 public:
  explicit ArgumentCheck(std::string codec) : codec_(std::move(codec)) {}
  ArgumentCheck& range(const char* name, int given, int least, int most) {
    if (given < least || given > most) {
      problems_.push_back(codec_ + ": " + name + " = " + std::to_string(given) + ", allowed " + std::to_string(least) +
                          ".." + std::to_string(most));
    }
    return *this;
  }
  /// Throws QuantizerConfigError when anything was out of range.
  void done() {
    if (!problems_.empty()) throw QuantizerConfigError(std::move(problems_));
  }

 private:
  std::string codec_;
  std::vector<std::string> problems_;
};

inline constexpr int kMostDim = 1 << 16;    ///< of a head
inline constexpr int kMostGroup = 1 << 16;  ///< rows or channels of one scale

}  // namespace veloxquant
