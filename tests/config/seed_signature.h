// The constructor of the original system's configuration, as its API reference prints it.
#pragma once

#include <cctype>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace veloxquant::testing_config {

struct SeedField {
  std::string name, def;
};

/// Nothing where the text is not there.
inline std::optional<std::string> seed_text() {
  std::ifstream file(std::string(VQ_SHARED_DIR) + "/spec/seed_api_reference.txt", std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// name=default of every parameter, in order; commas inside parentheses do not separate.
inline std::vector<SeedField> seed_fields(std::string_view text) {
  constexpr std::string_view kStart = "class veloxquant_mlx.cache.KVCacheConfig(";
  const size_t begin = text.find(kStart) + kStart.size();
  std::vector<SeedField> fields;
  std::string word;
  int depth = 0;
  for (char c : text.substr(begin)) {
    if (c == '(') ++depth;
    if (c == ')' && depth-- == 0) break;
    if (c == ',' && depth == 0) {
      fields.push_back({word, {}});
      word.clear();
    } else if (c != ' ') {
      word += c;
    }
  }
  fields.push_back({word, {}});
  for (SeedField& field : fields) {
    const size_t equals = field.name.find('=');
    field.def = field.name.substr(equals + 1);
    field.name.resize(equals);
  }
  return fields;
}

}  // namespace veloxquant::testing_config
