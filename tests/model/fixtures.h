// What the tests with a model share: the packaged model, its host, texts, and tiny models made on the spot.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "hosts/llama/host.h"
#include "veloxquant/registry.h"

namespace veloxquant::llama::test {

/// The file VQ_MODEL names. Throws std::runtime_error where it names none.
std::string model_path();
/// The packaged model, loaded.
std::unique_ptr<LlamaHost> load_packaged(int threads = 2);
/// The first `count` tokens of the test text.
std::vector<Token> text_tokens(const LlamaHost& host, int count);
std::string text_path();

/// A folder of this test's own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// A model of random f32 weights with the packaged model's vocabulary.
struct RandomModel {
  std::string architecture = "llama";  ///< llama, refact (ALiBi) or olmo2
  int layers = 2, embedding = 64, heads = 4, kv_heads = 2, feed_forward = 128, context = 4096;
  /// More metadata, below "<architecture>.".
  std::map<std::string, std::variant<uint32_t, bool, std::string>> metadata = {};
  std::vector<std::string> more_tensors = {};  ///< of half a head's size
  void write(const std::string& path) const;
};

}  // namespace veloxquant::llama::test
