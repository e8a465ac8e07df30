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

Session::Session(LlamaHost& host, const MethodSpec& method) : host_(host), caches_(method, host.layers()) {}

void Session::set_chunk_tokens(int tokens) { chunk_tokens_ = std::clamp(tokens, 1, LlamaHost::kChunkTokens); }

std::span<const float> Session::decode(std::span<const Token> tokens, Phase phase, Logits logits) {
  require_usable(tokens.size());
  logits_.clear();
  const int start = position_;
  try {
    for (size_t at = 0; at < tokens.size();) {
      const size_t count = std::min(tokens.size() - at, static_cast<size_t>(chunk_tokens_));
      const bool last = at + count == tokens.size();
      decode_chunk(tokens.subspan(at, count), last ? phase : Phase::prefill_more,
                   last || logits == Logits::all ? logits : Logits::none);
      at += count;
    }
  } catch (...) {
    roll_back(start);
    throw;
  }
  return logits_;
}

void Session::require_usable(size_t tokens) const {
  if (!closed_.empty()) throw std::runtime_error("this session is closed: " + closed_);
  if (tokens > static_cast<size_t>(room())) {
    throw std::runtime_error(
        fmt::format("{} tokens after the {} stored ones exceed the {} positions the model was "
                    "trained for",
                    tokens, position_, host_.trained_context()));
  }
}

int Session::room() const {
  const bool endless = caches_.size() > 0 && caches_[0].endless();
  return (endless ? std::numeric_limits<int>::max() : host_.trained_context()) - position_;
}

void Session::decode_chunk(std::span<const Token> tokens, Phase phase, Logits logits) {
  phase_ = phase;
  host_.compute(*this, tokens, position_, logits);
  const int count = static_cast<int>(tokens.size());
  for (int i = logits == Logits::all ? 0 : count - 1; i < count && logits != Logits::none; ++i) {
    const std::span<const float> row = host_.logits(i);
    logits_.insert(logits_.end(), row.begin(), row.end());
  }
  caches_.commit();
  position_ += count;
}

void Session::roll_back(int position) noexcept {
  position_ = position;
  try {
    // A call that was cut short has reached some layers and not others.
    for (int i = 0; i < caches_.size(); ++i) {
      KVCache& cache = caches_[i];
      const int extra = cache.offset() - position;
      if (extra <= 0) continue;
      if (!cache.is_trimmable() || cache.trim(extra) != extra) {
        closed_ = fmt::format("a call failed, and {} can't give its rows back", cache.method().text);
        return;
      }
    }
  } catch (const std::exception& error) {
    closed_ = error.what();
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
