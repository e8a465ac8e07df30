// One sequence on a host: a cache per attention layer, and the position of the next token.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "hosts/llama/batch_rules.h"
#include "hosts/llama/host.h"
#include "veloxquant/cache_set.h"

namespace veloxquant::llama {

class Session;

/// What one session is fed in a call for several.
struct SessionTurn {
  Session* session = nullptr;
  std::span<const Token> tokens;
  Phase phase = Phase::automatic;
  Logits logits = Logits::last;
};

/// Session::decode of several sessions of one host, in as few calls of llama_decode as their tokens fit in; the results
/// are in Session::logits. On any error all of them stand as before. Throws std::invalid_argument where a session is
/// there twice or on another host.
void decode_together(std::span<const SessionTurn> turns);

class Session : private LayerCalls {
 public:
  /// Throws QuantizerConfigError, and std::runtime_error where a model with recurrent layers has no free sequence. The
  /// host must outlive the session.
  Session(LlamaHost& host, const MethodSpec& method);
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Feeds tokens, cut into calls of at most `chunk_tokens`; `phase` is that of the last of them, those before it are
  /// prefill_more. Returns the rows of logits asked for, [n][vocabulary], valid until the next decode. On any error the
  /// session stands as before the call; where its method can't give rows back, or the states of recurrent layers have
  /// moved on, it is closed instead.
  std::span<const float> decode(std::span<const Token> tokens, Phase phase, Logits logits = Logits::last);
  /// Of the last decode.
  std::span<const float> logits() const { return logits_; }
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
  friend void decode_together(std::span<const SessionTurn> turns);
  Turn begin_part(const SessionTurn& turn, const Slice& slice);
  /// `index` counts the tokens of the call, up to the first of this part.
  void end_part(const Turn& part, int index);
  void roll_back(int position) noexcept;
  void give_rows_back(int position);
  void require_usable(size_t tokens) const;
  KVCache& cache(int layer);

  LlamaHost& host_;
  CacheSet caches_;
  int sequence_;        ///< llama's number of its recurrent state, or -1
  bool moved_ = false;  ///< the call in progress has reached llama
  int position_ = 0;
  int chunk_tokens_ = LlamaHost::kChunkTokens;
  Phase phase_ = Phase::automatic;  ///< of the call in progress
  std::vector<float> logits_;
  std::string closed_;  ///< why the session can't go on, or empty
};

}  // namespace veloxquant::llama
