// A model run by libllama with our caches in place of llama's: tokeniser, weights and sampling stay llama's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "hosts/llama/graph_rules.h"
#include "hosts/llama/layer_calls.h"
#include "veloxquant/types.h"

struct llama_context;
struct llama_model;
struct llama_model_params;
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
  int context = 0;                            ///< most tokens of a session; 0: what the model was trained for
  /// Most sequences in one call. Where the model has recurrent layers, also the most sessions at a time, and llama
  /// reserves so many states.
  int sequences = 1;
  /// In place of reading the file `model`: makes the model and says the names of its tensors.
  std::function<llama_model*(const llama_model_params&, std::set<std::string>& tensors)> load = {};
};

/// The tokens of one sequence in a call.
struct Turn {
  LayerCalls* calls = nullptr;  ///< what the graph calls for these tokens
  std::span<const Token> tokens;
  int position = 0;
  Logits logits = Logits::last;
  int sequence = -1;  ///< of LlamaHost::take_sequence, where the model has recurrent layers
};

/// "libllama 0.5.0, ggml 0.25.3 (commit)"
std::string versions();

/// Any number of sessions, one after another, interleaved or together in a call, run on one host: between calls llama
/// keeps nothing of them but the states of recurrent layers, each under a sequence number. Used by one thread at a
/// time.
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

  /// What each of llama's layers is, in llama's order: recurrent ones and those that read another layer's cache, too.
  const ModelDesc& description() const { return description_; }
  std::span<const LayerShape> layers() const { return layers_; }  ///< of those that own a cache, by rising llama layer
  /// Index into layers() of llama's layer number; -1 for none.
  int slot(int layer) const;
  std::span<const LayerRule> rules() const { return rules_; }  ///< of the same layers
  /// What is special about the model's attention, for people.
  std::string attention() const;
  int trained_context() const;
  int context() const;  ///< most tokens of a session
  bool recurrent() const { return facts_.hybrid; }
  int sequences() const { return sequences_; }  ///< most in one call
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

  /// Computes 1..kChunkTokens tokens in all; where the model has recurrent layers, equally many of each turn. Throws
  /// std::runtime_error with what went wrong in there, or Cancelled. Afterwards llama's cache is empty; after a failure
  /// the recurrent states of the turns are gone, too.
  void compute(std::span<const Turn> turns);
  /// A number for a new sequence with an empty recurrent state, -1 where the model has no recurrent layers. Throws
  /// std::runtime_error where HostOptions::sequences are taken.
  int take_sequence();
  void give_back_sequence(int sequence);
  void forget_state(int sequence);
  /// Of the last compute: `index` counts its tokens.
  std::span<const float> logits(int index) const;

  /// For contexts of llama's own on the same weights.
  llama_model* model() const { return model_.get(); }
  /// For those contexts' yarn_orig_ctx; 0: what the model says.
  int original_context() const { return original_context_; }

 private:
  void load(const HostOptions& options);
  void load_model(const HostOptions& options, std::set<std::string>& tensors);
  void place_probe();
  void make_context();
  void self_check();
  void release(std::span<const Turn> turns, bool good);
  Token first_token() const;
  const llama_vocab* vocab() const;

  std::string path_;
  int threads_ = 1, context_limit_ = 0, sequences_ = 1;
  int original_context_ = 0;  ///< of LongRoPE, where the model was made to use its factors for long contexts
  ModelFacts facts_;
  std::unique_ptr<Hook> hook_;  ///< the context holds its address
  std::unique_ptr<llama_model, void (*)(llama_model*)> model_;
  std::unique_ptr<llama_context, void (*)(llama_context*)> context_;
  ModelDesc description_;
  std::vector<LayerShape> layers_;  ///< point into the description
  std::vector<LayerRule> rules_;
  std::vector<bool> taken_;  ///< sequence numbers
};

}  // namespace veloxquant::llama
