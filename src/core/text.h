// Foreign text in messages: names and values that a user typed or a file holds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace veloxquant {

/// 'text' in quotes, safe to print: cut after 60 bytes, everything but printable ASCII as \xNN.
std::string quote(std::string_view text);
/// Without spaces and tabs at both ends.
std::string_view trimmed(std::string_view text);
/// "a, b, c".
std::string listed(const std::vector<std::string>& words);

}  // namespace veloxquant
