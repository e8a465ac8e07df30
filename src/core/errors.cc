#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

std::string joined(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) {
    if (!text.empty()) text += '\n';
    text += problem;
  }
  return text;
}

}  // namespace

QuantizerConfigError::QuantizerConfigError(std::vector<std::string> problems)
    : std::invalid_argument(joined(problems)), problems_(std::move(problems)) {}

}  // namespace veloxquant
