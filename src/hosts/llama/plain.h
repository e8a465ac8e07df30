// llama's own KV cache and attention on a host's weights, to compare with.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "hosts/llama/host.h"

namespace veloxquant::llama {

struct PlainOptions {
  std::string_view type = "f16";  ///< of keys and values: f32, f16, q8_0, q4_0
  bool flash_attention = true;
  int context = 0;         ///< most tokens it will hold
  int chunk_tokens = 512;  ///< llama's own default
};

class PlainRun {
 public:
  /// Throws std::runtime_error for an unknown type or when llama refuses. The host must outlive it.
  PlainRun(LlamaHost& host, const PlainOptions& options);

  /// As Session::decode, without phases.
  std::span<const float> decode(std::span<const Token> tokens, Logits logits = Logits::last);
  int position() const { return position_; }
  /// Bytes llama's cache needs for exactly `tokens` tokens, from its types and shapes; it reserves more.
  size_t cache_bytes(int tokens) const;

 private:
  LlamaHost& host_;
  int type_ = 0;  ///< ggml_type
  int chunk_tokens_;
  std::unique_ptr<llama_context, void (*)(llama_context*)> context_;
  int position_ = 0;
  std::vector<float> logits_;
};

}  // namespace veloxquant::llama
