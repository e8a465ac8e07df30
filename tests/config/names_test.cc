// docs/names.md: every public name of the original system has a row, and every test that a row names exists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "config/seed_signature.h"

namespace veloxquant {
namespace {

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct NameRow {
  std::string seed, here, test;
};

std::vector<NameRow> rows() {
  std::vector<NameRow> found;
  std::istringstream lines(content(std::string(VQ_SOURCE_DIR) + "/docs/names.md"));
  const std::regex pattern(R"(\| (.*) \| (.*) \| (.*) \|)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, pattern) && match[1] != "there") found.push_back({match[1], match[2], match[3]});
  }
  return found;
}

int count(const std::vector<NameRow>& rows, const std::string& pattern) {
  const std::regex regex(pattern);
  return static_cast<int>(
      std::count_if(rows.begin(), rows.end(), [&](const NameRow& row) { return std::regex_match(row.seed, regex); }));
}

TEST(names, fields_classes_and_calls_are_all_there) {
  const std::vector<NameRow> all = rows();
  EXPECT_EQ(count(all, R"(KVCacheConfig\.\w+)"), 225);
  EXPECT_EQ(count(all, R"(\w+Options)"), 37);
  EXPECT_EQ(count(all, R"(\w+Cache)"), 18);
  EXPECT_EQ(count(all, R"(KVCacheBuilder\.\w+\(\))"), 17);
  for (const NameRow& row : all) EXPECT_FALSE(row.here.empty() || row.test.empty()) << row.seed;
}

// Read with patterns of its own, not with those that wrote the page.
TEST(names, no_public_name_of_the_original_is_without_a_row) {
  const auto text = testing_config::seed_text();
  if (!text) GTEST_SKIP() << "the API reference of the original system is not there";
  std::set<std::string> seen;
  for (const NameRow& row : rows()) seen.insert(row.seed);
  const std::regex method(R"(^(?:static )?(\w+)\(.*\)\[source\]$)"), property(R"(^property (\w+).*)");
  std::istringstream lines(*text);
  std::string owner;
  int names = 0;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    std::string name;
    if (line.size() < 400 && std::regex_match(line, match, method)) {
      name = owner + "." + match[1].str() + "()";
    } else if (line.size() < 400 && std::regex_match(line, match, property)) {
      name = owner + "." + match[1].str();
    } else if (line.starts_with("class ") && std::regex_search(line, match, std::regex(R"(cache\.(\w+))"))) {
      name = owner = match[1].str();
    } else {
      continue;
    }
    ++names;
    EXPECT_TRUE(seen.contains(name)) << name;
  }
  EXPECT_GT(names, 180);
  for (const testing_config::SeedField& field : testing_config::seed_fields(*text)) {
    EXPECT_TRUE(seen.contains("KVCacheConfig." + field.name)) << field.name;
  }
}

TEST(names, every_test_that_a_row_names_exists) {
  std::set<std::string> tests;
  const std::regex pattern(R"(TEST(?:_F|_P)?\((\w+),\s*(\w+)\))");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(std::string(VQ_SOURCE_DIR) + "/tests")) {
    if (entry.path().extension() != ".cc") continue;
    const std::string text = content(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
      tests.insert((*it)[1].str() + "." + (*it)[2].str());
    }
  }
  for (const NameRow& row : rows()) {
    if (row.test != "-") {
      EXPECT_TRUE(tests.contains(row.test)) << row.seed << ": " << row.test;
    } else {
      EXPECT_THAT(row.here, testing::HasSubstr("comes with")) << row.seed;
    }
  }
}

}  // namespace
}  // namespace veloxquant
