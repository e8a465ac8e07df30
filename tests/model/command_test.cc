// generate and compare as a user runs them.
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.h"
#include "model/fixtures.h"

namespace veloxquant::llama {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_command::Result;
using testing_command::run;
using testing_command::run_shell;

Result generate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"generate", "-t", "2", "-m", test::model_path()});
  return run(std::move(arguments));
}

Result compare(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"compare", "-t", "2", "-m", test::model_path()});
  return run(std::move(arguments));
}

std::string write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  return path;
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

TEST(Generate, answers_a_question_through_the_chat_template) {
  const Result result = generate({"-p", "What is the capital of France?", "-n", "16"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Paris"));
  EXPECT_EQ(result.out.back(), '\n');
  EXPECT_EQ(result.err, "");
}

TEST(Generate, every_way_to_give_the_prompt_gives_the_same_text) {
  const test::TemporaryFolder folder;
  const std::string file = write(folder.file("prompt.txt"), "Two and two are");
  const Result text = generate({"--raw", "-n", "6", "-p", "Two and two are"});
  const Result read = generate({"--raw", "-n", "6", "-f", file});
  const Result piped = run_shell("$VQ generate --raw -n 6 -t 2 -m " + test::model_path() + " - < " + file);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out, read.out);
  EXPECT_EQ(text.out, piped.out) << piped.err;
}

TEST(Generate, sampling_follows_its_seed) {
  const auto sample = [](const char* seed) {
    return generate({"--raw", "-n", "24", "--temp", "1.5", "--seed", seed, "-p", "Once upon a time"}).out;
  };
  const std::string first = sample("1");
  EXPECT_EQ(first, sample("1"));
  EXPECT_NE(first, sample("2"));
}

TEST(Generate, the_statistics_come_last_and_on_standard_error) {
  const Result result =
      generate({"--raw", "-n", "5", "-p", "The sky is", "--method", "kivi", "--set", "bits=4", "--stats"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("tokens/s")));
  EXPECT_THAT(result.err, ContainsRegex("prompt: 3 tokens, [0-9.]+ tokens/s"));
  EXPECT_THAT(result.err, ContainsRegex("generated: 5 tokens, [0-9.]+ tokens/s"));
  EXPECT_THAT(result.err, ContainsRegex("cache: 7 tokens, resident .*[0-9]+ bytes.*used .*[0-9]+ bytes.*fp16"));
  EXPECT_THAT(result.err, ContainsRegex("arena: .*[0-9]+ bytes.* mapped, .*[0-9]+ bytes.* 2 MiB pages"));
  EXPECT_THAT(result.err, ContainsRegex("process: [0-9.]+ MiB"));
}

TEST(Generate, control_c_ends_the_text_cleanly) {
  const Result result = run_shell("$VQ generate --raw -n 4000 --stats -t 1 -m " + test::model_path() +
                                  " -p 'The history of the world' & pid=$!; sleep 4; kill -INT $pid; wait $pid");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, ContainsRegex("generated: [0-9]+ tokens"));
}

TEST(Generate, bad_input_is_refused_before_any_text) {
  const test::TemporaryFolder folder;
  const std::string empty = write(folder.file("empty.txt"), "\n");
  const struct {
    std::vector<std::string> arguments;
    int code;
    const char* message;
  } cases[] = {
      {{"-p", ""}, 2, "the prompt is empty"},
      {{"-f", empty}, 2, "the prompt is empty"},
      {{"-f", folder.file("absent.txt")}, 1, "absent.txt"},
      {{}, 2, "prompt"},
      {{"-p", "a", "-f", empty}, 2, "prompt"},
      {{"-p", "a", "-n", "0"}, 2, "tokens"},
      {{"-p", "a", "-c", "8193"}, 2, "at most 8192"},
      {{"-p", "a", "-c", "60", "-n", "60"}, 2, "context of 60"},
      {{"-p", "a", "--method", "kivvi"}, 2, "kivi"},
      {{"-p", "a", "--set", "group=7"}, 2, "group"},
      {{"-p", "a", "--temp", "-1"}, 2, "temp"},
      {{"-p", "a", "-t", "0"}, 2, "threads"},
  };
  for (const auto& c : cases) {
    const Result result = generate(c.arguments);
    EXPECT_EQ(result.code, c.code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(c.message));
  }
}

TEST(Generate, a_bad_model_file_is_named) {
  const test::TemporaryFolder folder;
  const std::string text = write(folder.file("text.gguf"), "no model");
  for (const std::string& path : {folder.file("absent.gguf"), text}) {
    const Result result = run({"generate", "-p", "a", "-m", path});
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, HasSubstr(path));
  }
}

Result converse(const std::string& lines, const std::string& arguments = "") {
  return run_shell("printf '" + lines + "' | $VQ generate --chat -t 2 -n 24 -m " + test::model_path() + " " +
                   arguments);
}

TEST(Chat, the_conversation_stays_in_the_cache) {
  const Result result = converse("My name is Ada.\\nWhat is my name?\\n/stats\\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  // The second message did not bring the first one and its answer again: all of it would be 60 tokens and more.
  EXPECT_THAT(result.out, ContainsRegex("prompt: [34][0-9] tokens"));
  EXPECT_THAT(result.out, ContainsRegex("cache: [78][0-9] tokens"));
  EXPECT_THAT(result.out, HasSubstr("arena:"));
}

TEST(Chat, every_method_and_a_change_of_it) {
  const Result result =
      converse("Hello.\\n/method snapkv(budget=64)+kivi(bits=4,group=16,residual=16)\\nAnd you?\\n/method\\n",
               "--method 'h2o(budget=48)'");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("snapkv(budget=64)+kivi(bits=4,group=16,residual=16)\n"));
}

TEST(Chat, bad_lines_are_named_and_the_conversation_goes_on) {
  const Result result = converse("/save here\\n/nonsense\\n/method kivy\\n\\n/help\\n/method\\n/quit\\nnever read\\n");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("/save: the cache can't be written to disk yet"));
  EXPECT_THAT(result.err, HasSubstr("/nonsense: unknown; there are /stats"));
  EXPECT_THAT(result.err, HasSubstr("did you mean 'kivi'?"));
  EXPECT_THAT(result.out, HasSubstr("Ctrl-C ends an answer"));
  EXPECT_THAT(result.out, HasSubstr("turboquant_rvq\n")) << "the method is still the first one";
  EXPECT_EQ(converse("Hi\\n", "-p Hi").code, 2) << "one of them";
}

TEST(Chat, a_context_longer_than_the_model_s) {
  const test::TemporaryFolder folder;
  // 300 positions were trained; the text has more.
  test::RandomModel model;
  model.context = 300;
  model.write(folder.file("model.gguf"));
  std::string prompt;
  for (int i = 0; i < 400; ++i) prompt += "ab ";
  const std::string file = write(folder.file("prompt.txt"), prompt);
  const auto generated = [&](const std::string& method) {
    return run(
        {"generate", "--raw", "-t", "1", "-n", "3", "-m", folder.file("model.gguf"), "-f", file, "--method", method});
  };
  const Result refused = generated("streaming_llm(window=64)");
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("300"));
  const Result streamed = generated("streaming_llm(window=64,positions=cache)");
  EXPECT_EQ(streamed.code, 0) << streamed.err;
}

TEST(Compare, rows_stand_in_the_given_order_and_count_the_bytes) {
  const test::TemporaryFolder folder;
  test::RandomModel{.embedding = 128}.write(folder.file("model.gguf"));  // 2 layers, 2 kv heads of 32
  const Result result =
      run({"compare", "-t", "2", "-m", folder.file("model.gguf"), "--text", test::text_path(), "-c", "600", "--methods",
           "kivi(bits=4,group=32),llama:q8_0,exact", "--json", folder.file("rows.json")});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("kivi(bits=4,group=32)"));
  EXPECT_THAT(result.out, HasSubstr("floor: KL"));
  const nlohmann::json json = read_json(folder.file("rows.json"));
  EXPECT_EQ(json["schema_version"], 1);
  ASSERT_EQ(json["rows"].size(), 3U);
  EXPECT_EQ(json["rows"][0]["method"], "kivi(bits=4,group=32)");
  EXPECT_EQ(json["rows"][1]["method"], "llama:q8_0");
  EXPECT_EQ(json["rows"][2]["method"], "exact");
  EXPECT_EQ(json["rows"][1]["resident_bytes"], 2 * 2 * 2 * 34 * 600);  // a head is one block of 34 bytes
  EXPECT_EQ(json["rows"][1]["bits_per_element"], 8.5);
  EXPECT_GE(json["rows"][2]["bits_per_element"], 16);
  for (const auto& row : json["rows"]) {
    EXPECT_GT(row["prefill_tokens_per_s"], 0);
    EXPECT_EQ(row["encode_share"] > 0, !row["method"].get<std::string>().starts_with("llama:"));
    EXPECT_GT(row["decode_tokens_per_s"], 0);
  }
}

TEST(Compare, figures_of_the_packaged_model_are_plausible) {
  const test::TemporaryFolder folder;
  const Result result = compare(
      {"--text", test::text_path(), "-c", "544", "--methods", "kivi(bits=4)", "--json", folder.file("rows.json")});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = read_json(folder.file("rows.json"));
  const nlohmann::json& row = json["rows"][0];
  EXPECT_GT(row["perplexity"], 10);
  EXPECT_LT(row["perplexity"], 100);
  EXPECT_GT(row["kl_mean"], json["floor_kl"]);
  EXPECT_LT(row["kl_mean"], 0.1);
  EXPECT_GT(row["top1_agreement"], 0.8);
  EXPECT_LT(row["bits_per_element"], 12);
  EXPECT_GT(json["floor_kl"], 0);
  EXPECT_LT(json["floor_kl"], 0.05);
}

TEST(Compare, bad_input_is_refused_before_work) {
  const test::TemporaryFolder folder;
  const std::string empty = write(folder.file("empty.txt"), ""), brief = write(folder.file("brief.txt"), "Too short.");
  const struct {
    std::vector<std::string> arguments;
    int code;
    const char* message;
  } cases[] = {
      {{}, 2, "--text"},
      {{"--text", empty}, 2, "the text is empty"},
      {{"--text", brief}, 2, "fewer than the 4000"},
      {{"--text", folder.file("absent.txt")}, 1, "absent.txt"},
      {{"--text", test::text_path(), "-c", "543"}, 2, "544"},
      {{"--text", test::text_path(), "-c", "8193"}, 2, "at most 8192"},
      {{"--text", test::text_path(), "--methods", "exact,,kivi"}, 2, "empty entry"},
      {{"--text", test::text_path(), "--methods", "exakt"}, 2, "exact"},
      {{"--text", test::text_path(), "--methods", "llama:q2_k"}, 2, "llama:q8_0"},
      {{"--text", test::text_path(), "--methods", "exact,exact"}, 2, "more than once"},
      {{"--text", test::text_path(), "--json", folder.file("no/such/folder.json")}, 1, "folder.json"},
  };
  for (const auto& c : cases) {
    const Result result = compare(c.arguments);
    EXPECT_EQ(result.code, c.code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace veloxquant::llama
