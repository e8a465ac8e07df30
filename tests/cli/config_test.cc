// veloxquant config: what it shows, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "veloxquant/fields.h"

namespace veloxquant {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_command::Result;
using testing_command::run;

/// A file that is gone with the object.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : path_(testing::TempDir() + "config_" + std::to_string(::getpid()) + ".json") {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

nlohmann::json row_named(const nlohmann::json& rows, std::string_view name) {
  for (const nlohmann::json& row : rows) {
    if (row.at("name") == name) return row;
  }
  return nullptr;
}

TEST(config_command, show_lists_every_field_with_value_default_and_owner) {
  const Result result = run({"config", "show", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json rows = nlohmann::json::parse(result.out).at("rows");
  for (size_t i = 0; i < flat_fields().size(); ++i) EXPECT_EQ(rows.at(i).at("name"), flat_fields()[i].name);
  EXPECT_GT(rows.size(), flat_fields().size()) << "and what the method has beside them";
  EXPECT_EQ(row_named(rows, "method").at("value"), "turboquant_rvq");
  EXPECT_EQ(row_named(rows, "h2o_budget").at("owner"), "h2o");
  EXPECT_EQ(row_named(rows, "seed").at("owner"), "all");
  EXPECT_EQ(row_named(rows, "bit_width_inlier").at("range"), "1..4") << "the range of the method";
}

TEST(config_command, show_says_where_a_value_came_from) {
  const ConfigFile file(R"({"method": "h2o", "options": {"h2o_grace": 9}, "h2o_budget": 300, "seed": 5})");
  const Result result = run({"config", "show", file.path(), "--set", "decay=0.5", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json rows = nlohmann::json::parse(result.out).at("rows");
  EXPECT_EQ(row_named(rows, "h2o_budget"), nlohmann::json::parse(
                                               R"({"name": "h2o_budget", "value": "300", "default": "512",
      "range": "0..1073741824", "alias": "budget", "from": "given", "owner": "h2o"})"));
  EXPECT_EQ(row_named(rows, "h2o_grace").at("from"), "options");
  EXPECT_EQ(row_named(rows, "h2o_grace").at("value"), "9");
  EXPECT_EQ(row_named(rows, "h2o_decay").at("value"), "0.5");
  EXPECT_EQ(row_named(rows, "h2o_rope_base").at("from"), "options") << "a struct has all its fields";
  EXPECT_EQ(row_named(rows, "query_source").at("from"), "default");
  const Result other = run({"config", "show", file.path(), "--method", "tova(budget=100)"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("options: got H2OOptions, allowed TOVAOptions for tova"));
}

TEST(config_command, bad_input_is_a_usage_error_that_names_it) {
  const auto refused = [](std::vector<std::string> arguments, const std::string& why) {
    const Result result = run(std::move(arguments));
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(why));
  };
  refused({"config"}, "A subcommand is required");
  refused({"config", "show", "--method", "h2p"}, "did you mean 'h2o'?");
  refused({"config", "show", "--method", "h2o", "--set", "budgt=3"},
          "h2o has no option 'budgt'; did you mean 'budget'?");
  refused({"config", "show", "--method", "h2o", "--set", "tova_budget=3"}, "it belongs to tova");
  refused({"config", "show", "--method", "h2o", "--set", "budget=3"}, "h2o_budget: got 3, allowed");
  refused({"config", "show", "--method", "h2o+kivi"}, "a composition of two methods has no flat configuration");
  const ConfigFile bad(R"({"method": "h2o", "h2o_buget": 3, "seed": "x", "h2o_decay": 0})");
  const Result result = run({"config", "check", bad.path()});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("unknown field 'h2o_buget'; did you mean 'h2o_budget'?"),
                                HasSubstr("seed: got '\"x\"', allowed any 64-bit integer"),
                                HasSubstr("h2o_decay: got '0', allowed above 0")));
  const Result missing = run({"config", "check", "/nowhere.json"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("/nowhere.json"));
}

TEST(config_command, check_says_that_nothing_is_wrong_and_what_has_no_effect) {
  const ConfigFile file(R"({"method": "gear", "gear_bits": 4, "tova_budget": 3})");
  const Result result = run({"config", "check", file.path()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("gear(gear_bits=4)"), HasSubstr("nothing wrong"),
                                HasSubstr("tova_budget: has no effect with gear; it belongs to tova")));
}

}  // namespace
}  // namespace veloxquant
