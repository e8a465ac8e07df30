#include "hosts/llama/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "veloxquant/errors.h"

namespace veloxquant::llama {
namespace {

Tensor tensor_of(const NewRows& rows, int heads, int dim) {
  if (rows.width != heads * dim) {
    throw ShapeError(fmt::format("rows of {} numbers for {} heads of {}", rows.width, heads, dim));
  }
  return {.data = rows.data,
          .dtype = DType::f32,
          .batch = 1,
          .tokens = rows.tokens,
          .heads = heads,
          .dim = dim,
          .stride_batch = 0,
          .stride_token = rows.stride_token,
          .stride_head = dim};
}

}  // namespace

Session::Session(LlamaHost& host, const MethodSpec& method)
    : host_(host), caches_(method, host.layers()), sequence_(host.take_sequence()) {}

Session::~Session() { host_.give_back_sequence(sequence_); }

void Session::set_chunk_tokens(int tokens) { chunk_tokens_ = std::clamp(tokens, 1, LlamaHost::kChunkTokens); }

std::span<const float> Session::decode(std::span<const Token> tokens, Phase phase, Logits logits) {
  const SessionTurn turn{this, tokens, phase, logits};
  decode_together(std::span(&turn, 1));
  return logits_;
}

void decode_together(std::span<const SessionTurn> turns) {
  for (size_t i = 0; i < turns.size(); ++i) {
    if (&turns[i].session->host_ != &turns[0].session->host_) {
      throw std::invalid_argument("sessions of different hosts in one call");
    }
    for (size_t j = 0; j < i; ++j) {
      if (turns[i].session == turns[j].session) throw std::invalid_argument("a session twice in one call");
    }
    turns[i].session->require_usable(turns[i].tokens.size());
  }
  if (turns.empty()) return;
  std::vector<int> lengths, starts;
  int limit = LlamaHost::kChunkTokens;
  for (const SessionTurn& turn : turns) {
    Session& session = *turn.session;
    lengths.push_back(static_cast<int>(turn.tokens.size()));
    starts.push_back(session.position_);
    limit = std::min(limit, session.chunk_tokens_);
    session.logits_.clear();
    session.moved_ = false;
  }
  LlamaHost& host = turns[0].session->host_;
  try {
    for (const std::vector<Slice>& call : plan_calls(lengths, limit, host.recurrent(), host.sequences())) {
      std::vector<Turn> parts;
      for (const Slice& slice : call) {
        const SessionTurn& turn = turns[static_cast<size_t>(slice.sequence)];
        parts.push_back(turn.session->begin_part(turn, slice));
      }
      host.compute(parts);
      int index = 0;  // of the call's tokens
      for (size_t i = 0; i < call.size(); ++i) {
        turns[static_cast<size_t>(call[i].sequence)].session->end_part(parts[i], index);
        index += call[i].count;
      }
    }
  } catch (...) {
    for (size_t i = 0; i < turns.size(); ++i) turns[i].session->roll_back(starts[i]);
    throw;
  }
}

Turn Session::begin_part(const SessionTurn& turn, const Slice& slice) {
  const bool last = slice.begin + slice.count == static_cast<int>(turn.tokens.size());
  phase_ = last ? turn.phase : Phase::prefill_more;
  moved_ = true;
  return {.calls = this,
          .tokens = turn.tokens.subspan(static_cast<size_t>(slice.begin), static_cast<size_t>(slice.count)),
          .position = position_,
          .logits = last || turn.logits == Logits::all ? turn.logits : Logits::none,
          .sequence = sequence_};
}

void Session::end_part(const Turn& part, int index) {
  const int count = static_cast<int>(part.tokens.size());
  for (int i = part.logits == Logits::all ? 0 : count - 1; i < count && part.logits != Logits::none; ++i) {
    const std::span<const float> row = host_.logits(index + i);
    logits_.insert(logits_.end(), row.begin(), row.end());
  }
  caches_.commit();
  position_ += count;
}

void Session::require_usable(size_t tokens) const {
  if (!closed_.empty()) throw std::runtime_error("this session is closed: " + closed_);
  if (tokens > static_cast<size_t>(room())) {
    const int limit = host_.context();
    throw std::runtime_error(
        fmt::format("{} tokens after the {} stored ones exceed the {} positions {}", tokens, position_, limit,
                    limit < host_.trained_context() ? "the host was made for" : "the model was trained for"));
  }
}

int Session::room() const {
  const bool endless = caches_.layers() > 0 && caches_[0].endless();
  return (endless ? std::numeric_limits<int>::max() : host_.context()) - position_;
}

void Session::roll_back(int position) noexcept {
  logits_.clear();
  position_ = position;
  try {
    give_rows_back(position);
    if (sequence_ < 0 || !moved_) return;
    // llama can't take tokens back out of a recurrent state.
    host_.forget_state(sequence_);
    if (position > 0) closed_ = "a call failed, and the state of its recurrent layers can't be brought back";
  } catch (const std::exception& error) {
    closed_ = error.what();
  }
}

// A call that was cut short has reached some layers and not others.
void Session::give_rows_back(int position) {
  for (int i = 0; i < caches_.layers(); ++i) {
    KVCache& cache = caches_[i];
    const int extra = cache.offset() - position;
    if (extra <= 0) continue;
    if (!cache.is_trimmable() || cache.trim(extra) != extra) {
      closed_ = fmt::format("a call failed, and {} can't give its rows back", cache.method().text);
      return;
    }
  }
}

KVCache& Session::cache(int layer) {
  const int slot = host_.slot(layer);
  if (slot < 0) throw std::runtime_error(fmt::format("layer {} was not there when the model was loaded", layer));
  return caches_[slot];
}

void Session::append(int layer, const NewRows& keys, const NewRows& values) {
  KVCache& target = cache(layer);
  const LayerShape& shape = target.shape();
  target.append(tensor_of(keys, shape.kv_heads, shape.dim_k), tensor_of(values, shape.kv_heads, shape.dim_v),
                {.phase = phase_, .valid = {}});
}

void Session::attend(int layer, const AttendIn& in, const AttendOut& out, int ith, int nth) {
  cache(layer).attend(in, out, ith, nth);
}

}  // namespace veloxquant::llama
