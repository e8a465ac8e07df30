#include "veloxquant/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

namespace veloxquant {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Options sample() {
  return Options({
      {.name = "sample_bits",
       .alias = "bits",
       .type = OptionType::integer,
       .def = int64_t{2},
       .min = 1,
       .max = 8,
       .choices = {},
       .meaning = ""},
      {.name = "sample_beta",
       .alias = {},
       .type = OptionType::real,
       .def = 0.5,
       .min = 0,
       .max = 1,
       .choices = {},
       .meaning = ""},
      {.name = "sample_scale",
       .alias = "scale",
       .type = OptionType::real,
       .def = {},
       .min = 1e-6,
       .max = 10,
       .choices = {},
       .meaning = ""},
      {.name = "sample_rule",
       .alias = {},
       .type = OptionType::choice,
       .def = "first",
       .choices = {"first", "second"},
       .meaning = ""},
      {.name = "sample_flag", .alias = {}, .type = OptionType::boolean, .def = true, .choices = {}, .meaning = ""},
      {.name = "sample_seed",
       .alias = {},
       .type = OptionType::integer,
       .def = int64_t{42},
       .min = -0x1p63,
       .max = 0x1p63,
       .choices = {},
       .meaning = ""},
  });
}

std::string problem(std::string_view name, std::string_view text) {
  Options options = sample();
  return options.set_text(name, text).value_or("");
}

TEST(options, defaults_stand_until_something_is_set) {
  Options options = sample();
  EXPECT_EQ(options.integer("sample_bits"), 2);
  EXPECT_EQ(options.real("sample_beta"), 0.5);
  EXPECT_FALSE(options.has_value("sample_scale"));
  EXPECT_EQ(options.choice("sample_rule"), "first");
  EXPECT_TRUE(options.boolean("sample_flag"));
  EXPECT_FALSE(options.explicitly_set("sample_bits"));
  EXPECT_EQ(options.set_text("bits", "2"), std::nullopt);
  EXPECT_TRUE(options.explicitly_set("sample_bits")) << "set to its default is set";
}

TEST(options, alias_and_flat_name_are_one_option) {
  Options options = sample();
  EXPECT_EQ(options.set_text("bits", " 4 "), std::nullopt);
  EXPECT_EQ(options.integer("sample_bits"), 4);
  EXPECT_EQ(options.set("sample_bits", int64_t{8}), std::nullopt);
  EXPECT_EQ(options.integer("bits"), 8);
}

TEST(options, integers_are_read_whole_and_without_overflow) {
  for (const char* bad : {"", "x", "3x", "3.0", "0x3", "+3", "3 4", "1e1", "none", "99999999999999999999", "-1", "9"}) {
    EXPECT_EQ(problem("bits", bad), "sample_bits: got '" + std::string(bad) + "', allowed 1..8");
  }
  Options options = sample();
  EXPECT_EQ(options.set_text("sample_seed", "-9223372036854775808"), std::nullopt);
  EXPECT_EQ(options.integer64("sample_seed"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(options.set_text("sample_seed", "9223372036854775807"), std::nullopt);
  EXPECT_EQ(problem("sample_seed", "9223372036854775808"),
            "sample_seed: got '9223372036854775808', allowed any 64-bit integer");
}

TEST(options, reals_are_finite_and_in_range) {
  Options options = sample();
  EXPECT_EQ(options.set_text("sample_beta", "1e-3"), std::nullopt);
  EXPECT_EQ(options.real("sample_beta"), 1e-3);
  EXPECT_EQ(options.set("sample_beta", int64_t{1}), std::nullopt) << "an integer is a real";
  for (const char* bad : {"nan", "inf", "-inf", "1e999", "1.5", "-0.1", "", "0.5f"}) {
    EXPECT_EQ(problem("sample_beta", bad), "sample_beta: got '" + std::string(bad) + "', allowed 0..1");
  }
  EXPECT_NE(options.set("sample_beta", std::numeric_limits<double>::quiet_NaN()), std::nullopt);
}

TEST(options, none_is_legal_only_where_it_is_the_default) {
  Options options = sample();
  EXPECT_EQ(options.set_text("scale", "2"), std::nullopt);
  EXPECT_EQ(options.real("scale"), 2);
  EXPECT_EQ(options.set_text("scale", "none"), std::nullopt);
  EXPECT_FALSE(options.has_value("scale"));
  EXPECT_EQ(problem("scale", "0"), "sample_scale: got '0', allowed 1e-06..10 | none");
  EXPECT_NE(options.set("sample_bits", OptionValue()), std::nullopt);
}

TEST(options, choices_and_booleans_are_named_exactly) {
  EXPECT_EQ(problem("sample_rule", "third"), "sample_rule: got 'third', allowed first | second");
  for (const char* bad : {"yes", "1", "True", ""}) {
    EXPECT_EQ(problem("sample_flag", bad), "sample_flag: got '" + std::string(bad) + "', allowed true | false");
  }
  EXPECT_EQ(problem("sample_flag", "false"), "");
}

TEST(options, a_value_of_another_type_is_refused) {
  Options options = sample();
  EXPECT_NE(options.set("sample_bits", 2.0), std::nullopt);
  EXPECT_NE(options.set("sample_bits", true), std::nullopt);
  EXPECT_NE(options.set("sample_flag", int64_t{1}), std::nullopt);
  EXPECT_NE(options.set("sample_rule", int64_t{1}), std::nullopt);
  EXPECT_EQ(options.integer("sample_bits"), 2) << "a refused value changes nothing";
}

TEST(options, unknown_names_are_problems) {
  EXPECT_THAT(problem("sample_bit", "2"), HasSubstr("unknown option 'sample_bit'"));
  EXPECT_THAT(problem("", "2"), HasSubstr("unknown option ''"));
}

TEST(options, reads_are_counted) {
  const Options options = sample();
  (void)options.integer("bits");
  (void)options.real("sample_beta");
  (void)options.has_value("scale");
  (void)options.choice("sample_rule");
  (void)options.value("sample_seed");
  EXPECT_THAT(options.unread(), ElementsAre("sample_flag", "sample_seed")) << "value() does not count";
}

TEST(options, foreign_bytes_are_printed_safely) {
  const std::string text = problem("bits", "\xff\xfe\n\x1b[31m");
  EXPECT_THAT(text, HasSubstr("'\\xff\\xfe\\x0a\\x1b[31m'"));
  EXPECT_LT(problem("bits", std::string(1 << 20, '7')).size(), 200u);
}

RC_GTEST_PROP(options, any_text_is_taken_or_refused, (const std::string& name, const std::string& text)) {
  Options options = sample();
  (void)options.set_text(name, text);
  for (const OptionSpec& spec : options.specs()) (void)options.set_text(spec.name, text);
  const int bits = options.integer("bits");
  RC_ASSERT(bits >= 1 && bits <= 8);
}

TEST(nearest, names_what_is_close_and_nothing_else) {
  const std::vector<std::string> names = {"exact", "kivi", "turboquant_rvq"};
  EXPECT_EQ(nearest("kivy", names), "kivi");
  EXPECT_EQ(nearest("KIVI", names), "kivi");
  EXPECT_EQ(nearest("turboquant-rvq", names), "turboquant_rvq");
  EXPECT_EQ(nearest("exat", names), "exact");
  EXPECT_EQ(nearest("snapkv", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest(std::string(1 << 20, 'k'), names), "");
}

}  // namespace
}  // namespace veloxquant
