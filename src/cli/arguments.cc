// Arguments that are small languages of their own.
#include <fmt/format.h>

#include <charconv>

#include "cli/app.h"
#include "core/text.h"

namespace veloxquant::cli {
namespace {

int64_t seed_of(std::string_view text, std::string_view whole) {
  int64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error == std::errc{} && end == text.data() + text.size()) return seed;
  throw UsageError(fmt::format("--seeds: got {}, wanted a 64-bit integer or a range such as 42..61", quote(whole)));
}

}  // namespace

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> entries;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    depth += (c == '(') - (c == ')');
    if (c != ',' || (depth > 0 && i < text.size())) continue;
    const std::string_view entry = trimmed(text.substr(begin, i - begin));
    if (entry.empty()) throw UsageError(fmt::format("empty entry at character {} of {}", begin + 1, quote(text)));
    entries.emplace_back(entry);
    begin = i + 1;
  }
  return entries;
}

std::vector<int64_t> parse_seeds(std::string_view text) {
  constexpr uint64_t kMost = 10000;
  const std::string_view whole = trimmed(text);
  const size_t dots = whole.find("..");
  const int64_t first = seed_of(whole.substr(0, dots), whole);
  const int64_t last = dots == std::string_view::npos ? first : seed_of(whole.substr(dots + 2), whole);
  if (last < first) throw UsageError(fmt::format("--seeds: {} ends before it begins", quote(whole)));
  const uint64_t count = static_cast<uint64_t>(last) - static_cast<uint64_t>(first);
  if (count >= kMost) throw UsageError(fmt::format("--seeds: {} are more than {} seeds", quote(whole), kMost));
  std::vector<int64_t> seeds;
  for (uint64_t i = 0; i <= count; ++i) seeds.push_back(first + static_cast<int64_t>(i));
  return seeds;
}

}  // namespace veloxquant::cli
