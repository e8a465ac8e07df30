// veloxquant replay: on a made-up folder for everything but quality, on the captured tensors for that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

#include "cli/command.h"
#include "io/capture_files.h"

namespace veloxquant {
namespace {

using namespace testing_command;
using namespace testing_files;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class Replay : public testing::Test {
 protected:
  Replay() { write_capture(folder_); }

  Result replay(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"replay", folder_.path()});
    return run(arguments);
  }

  void expect_refused(const std::vector<std::string>& arguments, int code, const std::string& message) const {
    const Result result = replay(arguments);
    SCOPED_TRACE(testing::PrintToString(arguments));
    EXPECT_EQ(result.code, code);
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_THAT(result.err, AllOf(StartsWith("veloxquant: "), HasSubstr(message))) << "and no work has begun";
  }

  TemporaryFolder folder_, out_;
};

TEST_F(Replay, table_and_json_have_every_method_way_and_seed) {
  const std::string path = out_.file("rows.json");
  const Result result = replay({"--methods", "exact,kivi,turboquant_rvq", "--seeds", "42..43", "--json", path});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(StartsWith("method"), HasSubstr("exact"), HasSubstr("42..43"), HasSubstr("vs fp16")));
  const json document = json::parse(read_text(path));
  EXPECT_EQ(document.at("schema_version"), 1);
  const json& rows = document.at("rows");
  ASSERT_EQ(rows.size(), 3u * 2 * 2);
  for (const json& row : rows) {
    EXPECT_EQ(row.at("rows_kept"), 512);
    EXPECT_EQ(row.at("fp16_bytes"), 2 * 512 * 16 * 2 * 2) << "2 bytes, 512 tokens, 16 channels, K and V, 2 layers";
    EXPECT_EQ(row.at("error_by_layer").size(), 2u);
    const double elements = 512 * 16 * 2 * 2;
    EXPECT_NEAR(row.at("bits_per_element").get<double>(), 8 * row.at("resident_bytes").get<double>() / elements, 1e-9);
    EXPECT_LE(row.at("used_bytes"), row.at("resident_bytes"));
  }
  EXPECT_EQ(out_.entries(), 1u);
}

TEST_F(Replay, exact_is_exact_and_the_ways_agree) {
  const Result result = replay({"--methods", "exact,kivi,turboquant_rvq", "--json", "-"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json rows = json::parse(result.out).at("rows");
  ASSERT_EQ(rows.size(), 6u);
  for (size_t i = 0; i < rows.size(); i += 2) {
    const double step = rows[i].at("error"), fetched = rows[i + 1].at("error");
    EXPECT_EQ(rows[i].at("method"), rows[i + 1].at("method"));
    EXPECT_EQ(rows[i].at("resident_bytes"), rows[i + 1].at("resident_bytes"));
    if (rows[i].at("method") == "exact") {
      EXPECT_LT(std::max(step, fetched), 1e-10);
    } else {
      EXPECT_GT(step, 1e-8);
      EXPECT_NEAR(fetched, step, 2e-3 * step) << rows[i].at("method");  // f16 rounding of what is fetched
    }
  }
}

TEST_F(Replay, commas_inside_parentheses_do_not_split_the_list) {
  const Result result = replay({"--methods", "exact, kivi(bits=4,group=16)", "--ways", "step", "--json", "-"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json rows = json::parse(result.out).at("rows");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].at("method"), "kivi(bits=4,group=16)");
}

TEST_F(Replay, a_seed_of_the_method_is_used_and_excludes_seeds) {
  const Result result = replay({"--methods", "turboquant_rvq(seed=7)", "--ways", "step", "--json", "-"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out).at("rows")[0].at("seed"), 7);
  expect_refused({"--methods", "kivi(seed=7)", "--seeds", "1..2"}, 2, "exclude each other");
}

TEST_F(Replay, bad_arguments_are_refused_before_work) {
  expect_refused({"--methods", "kivy"}, 2, "did you mean 'kivi'?");
  expect_refused({"--methods", "kivi(bits=9),exact(bits=2)"}, 2, "allowed 1..8\n  exact has no option 'bits'");
  expect_refused({"--methods", "kivi,,exact"}, 2, "empty entry at character 6 of 'kivi,,exact'");
  expect_refused({"--methods", ""}, 2, "empty entry at character 1 of ''");
  expect_refused({"--methods", "kivi(bits=2,"}, 2, "expected the name of an option at character 13");
  expect_refused({"--methods", "kivi)),exact"}, 2, "expected the end at character 5");
  expect_refused({"--ways", "stp"}, 2, "--ways: got 'stp', allowed step | update_and_fetch; did you mean 'step'?");
  for (const char* seeds : {"x", "1..", "..2", "1..2..3", "1...2", "99999999999999999999"}) {
    expect_refused({"--seeds", seeds}, 2, "wanted a 64-bit integer or a range such as 42..61");
  }
  expect_refused({"--seeds", "5..1"}, 2, "ends before it begins");
  expect_refused({"--seeds=-9223372036854775808..9223372036854775807"}, 2, "more than 10000 seeds");
}

TEST_F(Replay, an_impossible_json_path_is_refused_before_work) {
  expect_refused({"--json", "/nowhere/rows.json"}, 1, "can't write /nowhere/rows.json: No such file or directory");
  expect_refused({"--json", out_.path()}, 1, "Is a directory");
  expect_refused({"--json", ""}, 1, "can't write '': No such file or directory");
}

TEST_F(Replay, a_full_disk_is_an_error_and_leaves_nothing) {
  const Result device = replay({"--methods", "exact", "--ways", "step", "--json", "/dev/full"});
  EXPECT_EQ(device.code, 1);
  EXPECT_THAT(device.err, HasSubstr("veloxquant: can't write /dev/full: No space left on device"));
  const Result limit = run_shell("ulimit -f 0; \"$VQ\" replay " + folder_.path() +
                                 " --methods exact --ways step --json " + out_.file("rows.json"));
  EXPECT_EQ(limit.code, 1);
  EXPECT_THAT(limit.err, HasSubstr("rows.json: File too large"));
  EXPECT_EQ(out_.entries(), 0u);
}

TEST_F(Replay, a_bad_folder_is_refused_before_work) {
  const Result missing = run({"replay", "/nowhere"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(missing.err, "veloxquant: can't read /nowhere/meta.json: No such file or directory\n");
  write_text(folder_.file("layer04_v.npy"), tensor_file(512, 1, 8, 1));
  expect_refused({}, 1, "layer04_v.npy: shape is [512, 1, 8], wanted [512, 1, 16]");
  std::string data = f16_data(512 * 16, 1);
  data[2 * (100 * 16 + 3) + 1] = '\x7c';
  data[2 * (100 * 16 + 3)] = '\0';
  write_text(folder_.file("layer04_v.npy"), npy(npy_header("<f2", "(512, 1, 16)"), data));
  expect_refused({}, 1, "layer04_v.npy: inf at token 100, head 0, channel 3");
  write_text(folder_.file("layer04_v.npy"), "\x93NUMPY");
  expect_refused({}, 1, "the file ends inside its header");
}

TEST_F(Replay, too_few_tokens_are_refused) {
  write_capture(folder_, {.tokens = 511});
  expect_refused({}, 1, "511 tokens were captured, replay needs 512 at least");
}

TEST_F(Replay, a_capacity_that_is_too_small_is_an_error) {
  const Result result = replay({"--methods", "exact(capacity=100)", "--ways", "step"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(StartsWith("veloxquant: "), HasSubstr("100")));
  EXPECT_THAT(result.out, IsEmpty());
}

TEST_F(Replay, progress_is_plain_lines_off_a_terminal) {
  const Result result = replay({"--methods", "exact", "--ways", "step"});
  EXPECT_EQ(result.err, "replay: 1/2 exact seed 42\nreplay: 2/2 exact seed 42\n");
}

TEST_F(Replay, progress_is_a_bar_on_a_terminal_and_is_removed) {
  const std::vector<std::string> arguments = {"replay", folder_.path(), "--methods", "exact", "--ways", "step"};
  const Result coloured = run_on_terminal(arguments);
  EXPECT_EQ(coloured.code, 0);
  EXPECT_THAT(coloured.err, AllOf(HasSubstr("\r"), HasSubstr("\x1b[32m###"), testing::EndsWith("\r\x1b[K")));
  const Result plain = run_on_terminal(arguments, {{"NO_COLOR", "1"}});
  EXPECT_THAT(plain.err, AllOf(HasSubstr("[####"), Not(HasSubstr("\x1b[32m"))));
}

}  // namespace
}  // namespace veloxquant
