#include "hosts/llama/text_rules.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <stdexcept>

#include "io/capture_files.h"

namespace veloxquant::llama {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ModelFile : public ::testing::Test {
 protected:
  /// What check_model_file says about a file with these bytes.
  std::string problem(std::string_view bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return problem_of(path_);
  }
  static std::string problem_of(const std::string& path) {
    try {
      check_model_file(path);
      return "none";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  }

  testing_files::TemporaryFolder folder_;
  std::string path_ = folder_.file("model.gguf");
};

TEST_F(ModelFile, problems_name_the_file_and_the_cause) {
  EXPECT_THAT(problem(""), AllOf(HasSubstr(path_), HasSubstr("is empty")));
  EXPECT_THAT(problem("hello, world, this is a text file"), AllOf(HasSubstr(path_), HasSubstr("is not a GGUF model")));
  EXPECT_THAT(problem("GG"), HasSubstr("is not a GGUF model"));
  EXPECT_THAT(problem("GGUF\3"), HasSubstr("is cut short"));
  EXPECT_EQ(problem(std::string("GGUF") + std::string(20, '\0')), "none");
}

TEST_F(ModelFile, missing_files_and_folders_are_named) {
  EXPECT_THAT(problem_of("/nowhere/model.gguf"), AllOf(HasSubstr("/nowhere/model.gguf"), HasSubstr("no such file")));
  EXPECT_THAT(problem_of(::testing::TempDir()), HasSubstr("is a folder"));
}

/// The text that comes out when it goes in `step` bytes at a time.
std::string stream(const std::string& bytes, size_t step) {
  Utf8Stream utf8;
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += step) text += utf8.push(std::string_view(bytes).substr(at, step));
  return text + utf8.finish();
}

TEST(Utf8, characters_cut_anywhere_come_out_whole) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";  // a, e acute, euro, face, z
  for (size_t step = 1; step <= text.size(); ++step) EXPECT_EQ(stream(text, step), text) << step;
}

TEST(Utf8, a_started_character_waits) {
  Utf8Stream utf8;
  EXPECT_EQ(utf8.push("x\xF0\x9F"), "x");
  EXPECT_EQ(utf8.push("\x98"), "");
  EXPECT_EQ(utf8.push("\x80y"), "\xF0\x9F\x98\x80y");
  EXPECT_EQ(utf8.finish(), "");
}

TEST(Utf8, bytes_that_are_no_character_are_replaced) {
  const std::string replaced = "\xEF\xBF\xBD";
  EXPECT_EQ(stream("\xFF", 1), replaced);
  EXPECT_EQ(stream("a\x80z", 1), "a" + replaced + "z");
  EXPECT_EQ(stream("\xE2\x82", 1), replaced);  // cut at the end
  EXPECT_EQ(stream("\xE2\x82z", 3), replaced + replaced + "z");
  EXPECT_EQ(stream("\xC0\xAF", 1), replaced + replaced);                                // overlong
  EXPECT_EQ(stream("\xED\xA0\x80", 3), replaced + replaced + replaced);                 // surrogate
  EXPECT_EQ(stream("\xF4\x90\x80\x80", 4), replaced + replaced + replaced + replaced);  // above U+10FFFF
}

RC_GTEST_PROP(Utf8, the_cut_changes_nothing, (const std::string& bytes)) {
  const std::string whole = stream(bytes, bytes.size() + 1);
  RC_ASSERT(stream(bytes, 1) == whole);
  RC_ASSERT(stream(bytes, 3) == whole);
  RC_ASSERT(stream(whole, 2) == whole);  // what comes out is valid
}

}  // namespace
}  // namespace veloxquant::llama
