// Loading: which models are served, and what is said about the others.
#include "hosts/llama/host.h"

#include <gmock/gmock.h>

#include <array>
#include <fstream>
#include <stdexcept>

#include "model/fixtures.h"

namespace veloxquant::llama {
namespace {

using test::RandomModel;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// What loading `path` says.
std::string problem(const std::string& path) {
  try {
    LlamaHost host({.model = path, .threads = 1});
    return "served";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

std::string problem(const RandomModel& model) {
  const test::TemporaryFolder folder;
  model.write(folder.file("model.gguf"));
  return problem(folder.file("model.gguf"));
}

TEST(Host, the_packaged_model_has_thirty_layers) {
  const auto host = test::load_packaged();
  ASSERT_EQ(host->layers().size(), 30U);
  for (int i = 0; i < 30; ++i) {
    const LayerShape& shape = host->layers()[static_cast<size_t>(i)];
    EXPECT_EQ(shape.layer, i);
    EXPECT_EQ(host->slot(i), i);
    EXPECT_EQ(shape.q_heads, 9);
    EXPECT_EQ(shape.kv_heads, 3);
    EXPECT_EQ(shape.dim_k, 64);
    EXPECT_EQ(shape.dim_v, 64);
  }
  EXPECT_EQ(host->slot(30), -1);
  EXPECT_EQ(host->slot(-1), -1);
  EXPECT_EQ(host->trained_context(), 8192);
  EXPECT_EQ(host->vocabulary(), 49152);
}

TEST(Host, texts_survive_the_tokeniser) {
  const auto host = test::load_packaged();
  const std::string text = "Na\xC3\xAFve caf\xC3\xA9s cost 3 \xE2\x82\xAC. \xF0\x9F\x98\x80";
  std::string back;
  for (const Token token : host->tokenize(text, false)) back += host->piece(token);
  EXPECT_EQ(back, text);
  EXPECT_TRUE(host->tokenize("", false).empty());
}

TEST(Host, the_chat_template_wraps_the_prompt) {
  const auto host = test::load_packaged();
  ASSERT_TRUE(host->has_chat_template());
  const std::string prompt = host->chat_text(std::array{llama::ChatMessage{"user", "Hi"}});
  EXPECT_THAT(prompt, HasSubstr("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"));
  const std::vector<Token> tokens = host->tokenize(prompt, true);
  EXPECT_TRUE(host->ends_text(host->tokenize("<|im_end|>", true).front()));
  EXPECT_LT(tokens.size(), 20U);
}

TEST(Host, random_models_of_grouped_heads_and_alibi_are_served) {
  EXPECT_EQ(problem(RandomModel{}), "served");
  EXPECT_EQ(problem(RandomModel{.architecture = "refact"}), "served");
  EXPECT_EQ(problem(RandomModel{.architecture = "olmo2"}), "served");
}

TEST(Refusal, attention_that_is_not_causal) {
  EXPECT_THAT(problem(RandomModel{.metadata = {{"attention.causal", false}}}), HasSubstr("not causal"));
}

TEST(Refusal, an_unknown_architecture) {
  const test::TemporaryFolder folder;
  RandomModel{.architecture = "nonsense"}.write(folder.file("model.gguf"));
  EXPECT_THAT(problem(folder.file("model.gguf")), AllOf(HasSubstr("model.gguf"), HasSubstr("nonsense")));
}

TEST(Refusal, missing_foreign_and_truncated_files) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(problem(folder.file("absent.gguf")), AllOf(HasSubstr("absent.gguf"), HasSubstr("no such file")));
  std::ofstream(folder.file("text.gguf")) << "not a model at all";
  EXPECT_THAT(problem(folder.file("text.gguf")), AllOf(HasSubstr("text.gguf"), HasSubstr("not a GGUF model")));
  const auto whole = std::filesystem::file_size(test::model_path());
  for (const auto size : {uintmax_t{30}, uintmax_t{100000}, whole / 2, whole - 1}) {
    const std::string path = folder.file("cut.gguf");
    std::filesystem::copy_file(test::model_path(), path, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(path, size);
    EXPECT_THAT(problem(path), AllOf(HasSubstr("cut.gguf"), HasSubstr("damaged or cut short"))) << size;
  }
}

}  // namespace
}  // namespace veloxquant::llama
