// One sequence on a host: a cache per attention layer, and the position of the next token.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "hosts/llama/host.h"
#include "veloxquant/cache_set.h"

namespace veloxquant::llama {

class Session : private LayerCalls {
 public:
  /// Throws QuantizerConfigError. The host must outlive the session.
  Session(LlamaHost& host, const MethodSpec& method);

  /// Feeds tokens, cut into calls of at most `chunk_tokens`; `phase` is that of the last of them, those before it are
  /// prefill_more. Returns the rows of logits asked for, [n][vocabulary], valid until the next decode. On any error the
  /// session stands as before the call; where its method can't give rows back, it is closed instead.
  std::span<const float> decode(std::span<const Token> tokens, Phase phase, Logits logits = Logits::last);
  /// 1..LlamaHost::kChunkTokens.
  void set_chunk_tokens(int tokens);

  int position() const { return position_; }
  /// Tokens that can still be fed: as many as the context has left, or without end where the method's cache is endless.
  int room() const;
  /// An error has left it without use.
  bool closed() const { return !closed_.empty(); }
  CacheSet& caches() { return caches_; }
  LlamaHost& host() { return host_; }

 private:
  void append(int layer, const NewRows& keys, const NewRows& values) override;
  void attend(int layer, const AttendIn& in, const AttendOut& out, int ith, int nth) override;
  void decode_chunk(std::span<const Token> tokens, Phase phase, Logits logits);
  void roll_back(int position) noexcept;
  void require_usable(size_t tokens) const;
  KVCache& cache(int layer);

  LlamaHost& host_;
  CacheSet caches_;
  int position_ = 0;
  int chunk_tokens_ = LlamaHost::kChunkTokens;
  Phase phase_ = Phase::automatic;  ///< of the call in progress
  std::vector<float> logits_;
  std::string closed_;  ///< why the session can't go on, or empty
};

}  // namespace veloxquant::llama
