// A model run by libllama with our caches in place of llama's: tokeniser, weights and sampling stay llama's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "hosts/llama/layer_calls.h"
#include "veloxquant/types.h"

struct llama_context;
struct llama_model;
struct llama_vocab;

namespace veloxquant::llama {

class Hook;

using Token = int32_t;

/// The cancel flag stopped a call.
struct Cancelled : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ChatMessage {
  std::string role, text;  ///< user or assistant
};

/// Which tokens of a call predict.
enum class Logits : uint8_t { none, last, all };

struct HostOptions {
  std::string model;                          ///< path of a GGUF file
  int threads = 0;                            ///< 0: one per hardware thread
  const std::atomic<bool>* cancel = nullptr;  ///< ends a call as soon as it is true
};

/// "libllama 0.5.0, ggml 0.25.3 (commit)"
std::string versions();

/// Any number of sessions, one after another or interleaved, run on one host: between calls llama keeps nothing of
/// them. Used by one thread at a time.
class LlamaHost {
 public:
  /// Tokens of one llama_decode; longer calls are cut.
  static constexpr int kChunkTokens = 256;

  /// Loads the model and checks, by computing one token, that all of its attention is ours. Throws std::runtime_error
  /// naming the file and the reason.
  explicit LlamaHost(const HostOptions& options);
  ~LlamaHost();
  LlamaHost(const LlamaHost&) = delete;
  LlamaHost& operator=(const LlamaHost&) = delete;

  std::span<const LayerShape> layers() const { return layers_; }  ///< by rising llama layer
  /// Index into layers() of llama's layer number; -1 for none.
  int slot(int layer) const;
  int trained_context() const;
  int vocabulary() const;
  const std::string& path() const { return path_; }
  int threads() const { return threads_; }
  void set_threads(int threads);

  /// `special` also turns texts like "<|im_end|>" into their tokens. BOS is added to the `first` text where
  /// the model wants it.
  std::vector<Token> tokenize(std::string_view text, bool special, bool first = true) const;
  /// May end inside a UTF-8 character. Empty for control tokens.
  std::string piece(Token token) const;
  bool ends_text(Token token) const;
  bool has_chat_template() const;
  /// A conversation in the model's chat template, up to where the next answer begins. Throws std::runtime_error where
  /// there is none or libllama does not know it.
  std::string chat_text(std::span<const ChatMessage> messages) const;

  /// Computes 1..kChunkTokens tokens at `position` on; the graph calls `calls`. Throws std::runtime_error with what
  /// went wrong in there, or Cancelled. Afterwards llama's cache is empty.
  void compute(LayerCalls& calls, std::span<const Token> tokens, int position, Logits logits);
  /// Of the last compute: `index` counts its tokens.
  std::span<const float> logits(int index) const;

  /// For contexts of llama's own on the same weights.
  llama_model* model() const { return model_.get(); }

 private:
  void load();
  void make_context();
  void self_check();
  const llama_vocab* vocab() const;

  std::string path_;
  int threads_ = 1;
  std::unique_ptr<Hook> hook_;  ///< the context holds its address
  std::unique_ptr<llama_model, void (*)(llama_model*)> model_;
  std::unique_ptr<llama_context, void (*)(llama_context*)> context_;
  std::vector<LayerShape> layers_;
};

}  // namespace veloxquant::llama
