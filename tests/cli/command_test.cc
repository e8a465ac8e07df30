// The command as a user meets it: help, versions, the registry, and every kind of bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

using namespace testing_command;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

/// Exit code, one clear message, nothing on stdout.
void expect_refused(const std::vector<std::string>& arguments, int code, const std::string& message) {
  const Result result = run(arguments);
  SCOPED_TRACE(testing::PrintToString(arguments));
  EXPECT_EQ(result.code, code);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, AllOf(StartsWith("veloxquant: "), HasSubstr(message), EndsWith("\n")));
}

TEST(command, help_has_examples_everywhere) {
  const Result all = run({"--help"});
  EXPECT_EQ(all.code, 0);
  EXPECT_THAT(all.err, IsEmpty());
  for (const char* name : {"methods", "replay", "generate", "compare", "Examples:"}) {
    EXPECT_THAT(all.out, HasSubstr(name));
  }
  for (const char* name : {"methods", "replay"}) {
    const Result sub = run({name, "--help"});
    EXPECT_EQ(sub.code, 0);
    EXPECT_THAT(sub.out, AllOf(HasSubstr("--json"), HasSubstr("Examples:\n  veloxquant " + std::string(name))));
  }
}

TEST(command, version_names_libraries_and_instruction_set) {
  const Result result = run({"--version"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, StartsWith("veloxquant "));
  for (const char* name :
       {"Highway", "CLI11", "fmt", "nlohmann-json", "Eigen", "xxHash", "libllama", "instruction set: "}) {
    EXPECT_THAT(result.out, HasSubstr(name));
  }
}

TEST(command, the_environment_chooses_the_instruction_set) {
  EXPECT_THAT(run({"--version"}, {{"VELOXQUANT_ISA", "baseline"}}).out, HasSubstr("instruction set: baseline"));
  const Result unknown = run({"methods"}, {{"VELOXQUANT_ISA", "mmx"}});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("VELOXQUANT_ISA is 'mmx'"), HasSubstr("baseline")));
}

TEST(command, usage_errors_name_the_nearest) {
  expect_refused({}, 2, "no command given");
  expect_refused({"replya"}, 2, "unexpected argument replya; did you mean replay?");
  expect_refused({"replay", "x", "--methds", "kivi"}, 2, "unexpected argument --methds; did you mean --methods?");
  expect_refused({"methods", "--jsn"}, 2, "unexpected argument --jsn; did you mean --json?");
  expect_refused({"methods", "kivi", "exact"}, 2, "unexpected argument exact");
  expect_refused({"replay"}, 2, "folder is required");
  expect_refused({"replay", "x", "--json"}, 2, "--json");
}

TEST(command, without_libllama_the_host_commands_say_how_to_get_them) {
  if (run({"--version"}).out.find("no libllama") == std::string::npos) GTEST_SKIP() << "this build has libllama";
  expect_refused({"generate", "-m", "x.gguf"}, 1, "-DVQ_LLAMA=ON");
  expect_refused({"compare", "-m", "x.gguf"}, 1, "-DVQ_LLAMA=ON");
}

TEST(methods, the_list_has_all_with_their_bytes) {
  const Result result = run({"methods"});
  EXPECT_EQ(result.code, 0);
  for (const MethodDef* def : method_table()) EXPECT_THAT(result.out, HasSubstr(std::string(def->name)));
  EXPECT_THAT(result.out, AllOf(HasSubstr("2402.02750"), HasSubstr(" 768 "), HasSubstr("5.33x"), HasSubstr(" 2576 "),
                                HasSubstr("not_trimmable"), HasSubstr("vectors")));
}

TEST(methods, json_holds_what_the_registry_declares) {
  const Result result = run({"methods", "--json"});
  EXPECT_EQ(result.code, 0);
  const nlohmann::json document = nlohmann::json::parse(result.out);
  EXPECT_EQ(document.at("schema_version"), 1);
  const nlohmann::json& rows = document.at("rows");
  ASSERT_EQ(rows.size(), method_table().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const MethodDef& def = *method_table()[i];
    EXPECT_EQ(rows[i].at("name"), def.name);
    EXPECT_EQ(rows[i].at("capabilities").at("trimmable"), def.capabilities.trimmable);
    const nlohmann::json& options = rows[i].at("options");
    ASSERT_EQ(options.size(), def.options.size() + general_options().size());
    for (size_t o = 0; o < def.options.size(); ++o) {
      EXPECT_EQ(options[o].at("name"), def.options[o].name);
      EXPECT_EQ(options[o].at("range"), def.options[o].range_text());
      EXPECT_EQ(options[o].at("meaning"), def.options[o].meaning);
    }
  }
}

TEST(methods, one_method_is_shown_with_the_given_options) {
  const Result text = run({"methods", "kivi(bits=4)"});
  EXPECT_EQ(text.code, 0);
  for (const MethodDef* def : method_table()) {
    const Result one = run({"methods", std::string(def->name)});
    for (const OptionSpec& option : def->options) {
      EXPECT_THAT(one.out, AllOf(HasSubstr(std::string(option.name)), HasSubstr(option.range_text())));
    }
  }
  const nlohmann::json document = nlohmann::json::parse(run({"methods", "kivi(bits=4)", "--json"}).out);
  EXPECT_EQ(document.at("rows").at(0).at("bytes_per_token").at("total"), 1280);
  EXPECT_EQ(document.at("rows").at(0).at("options").at(0).at("default"), 2);
}

TEST(methods, bad_names_and_options_are_usage_errors) {
  expect_refused({"methods", "kivy"}, 2, "unknown method 'kivy'; did you mean 'kivi'?");
  expect_refused({"methods", "kivi(grup=4)"}, 2, "kivi has no option 'grup'; did you mean 'group'?");
  expect_refused({"methods", "kivi(bits=9)"}, 2, "kivi: bit_width_inlier: got '9', allowed 1..8");
  expect_refused({"methods", "exact(bits=2)"}, 2, "exact has no option 'bits'; it belongs to");
  expect_refused({"methods", "kivi(bits=2"}, 2, "expected ',' or ')' at character 12");
  expect_refused({"methods", "kivi+exact"}, 2, "the first part has to choose rows");
  expect_refused({"methods", "\xff\xfe"}, 2, "'\\xff\\xfe'");
}

TEST(command, output_to_a_full_disk_is_an_error) {
  for (const std::string arguments : {"methods", "methods --json", "--help"}) {
    const Result result = run_shell("\"$VQ\" " + arguments + " > /dev/full");
    EXPECT_EQ(result.code, 1) << arguments;
    EXPECT_EQ(result.err, "veloxquant: can't write the output: No space left on device\n") << arguments;
  }
}

TEST(command, errors_are_coloured_only_on_a_terminal_that_wants_it) {
  EXPECT_THAT(run_on_terminal({"methods", "kivy"}).err, StartsWith("\x1b[31mveloxquant:"));
  EXPECT_THAT(run_on_terminal({"methods", "kivy"}, {{"NO_COLOR", "1"}}).err, StartsWith("veloxquant:"));
  EXPECT_THAT(run({"methods", "kivy"}).err, StartsWith("veloxquant:"));
}

}  // namespace
}  // namespace veloxquant
