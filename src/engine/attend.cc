// Attend calls of a layer: what is refused, who computes what on which thread, and what is kept for the commit.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/check.h"
#include "core/scratch.h"
#include "engine/attention.h"
#include "kernels/kernels.h"
#include "veloxquant/errors.h"
#include "veloxquant/rope.h"

namespace veloxquant {
namespace {

// Padding is never computed with, so it may hold anything.
void check_finite(const Tensor& q, std::span<const Range> valid, int layer) {
  float* row = q.dtype == DType::f32 ? nullptr : Scratch::floats(static_cast<size_t>(q.dim));
  for (int b = 0; b < q.batch; ++b) {
    const Range tokens = valid.empty() ? Range{0, q.tokens} : valid[static_cast<size_t>(b)];
    for (int t = tokens.begin; t < tokens.end; ++t) {
      for (int h = 0; h < q.heads; ++h) {
        const int64_t at = b * q.stride_batch + t * q.stride_token + h * q.stride_head;
        const auto* data = static_cast<const std::byte*>(q.data) + at * static_cast<int64_t>(size_of(q.dtype));
        if (row) kernels::to_f32(data, q.dim, q.dtype, row);
        if (kernels::all_finite(row ? row : reinterpret_cast<const float*>(data), q.dim)) continue;
        throw ValueError(
            fmt::format("layer {}: query of batch row {}, token {}, head {} is not finite", layer, b, t, h));
      }
    }
  }
}

}  // namespace

void KVCache::Layer::check_queries(const AttendIn& in, std::span<const Range> valid) const {
  const Tensor& q = in.q;
  const auto fail = [&](const std::string& what) { throw ShapeError(fmt::format("layer {}: {}", shape_.layer, what)); };
  const bool heads_fit = shape_.q_heads > 0 ? q.heads == shape_.q_heads : q.heads > 0 && q.heads % shape_.kv_heads == 0;
  if (!heads_fit || q.dim != shape_.dim_k || q.tokens < 0 || (!q.data && q.tokens > 0)) {
    const std::string heads = shape_.q_heads > 0 ? fmt::format("{} heads", shape_.q_heads)
                                                 : fmt::format("multiples of {} heads", shape_.kv_heads);
    fail(fmt::format("queries are [tokens {}][heads {}][dim {}]{}, expected {} of {}", q.tokens, q.heads, q.dim,
                     q.data ? "" : " without data", heads, shape_.dim_k));
  }
  if (!in.alibi.empty() && in.alibi.size() != static_cast<size_t>(q.heads)) {
    fail(fmt::format("{} ALiBi slopes for {} query heads", in.alibi.size(), q.heads));
  }
  if (!in.sinks.empty() && in.sinks.size() != static_cast<size_t>(q.heads)) {
    fail(fmt::format("{} sink logits for {} query heads", in.sinks.size(), q.heads));
  }
  if (in.window < 0 || in.chunk < 0 || !std::isfinite(in.scale) || !std::isfinite(in.softcap) || in.softcap < 0) {
    fail(fmt::format("window {}, chunk {} and softcap {} must not be negative, scale {} finite", in.window, in.chunk,
                     in.softcap, in.scale));
  }
  check_finite(q, valid, shape_.layer);
}

void KVCache::Layer::check_step(const AttendIn& in, const Tensor& k, const Tensor& v, const CallInfo& info) const {
  check_append(k, v, info);
  if (in.q.batch != k.batch || in.q.tokens != k.tokens) {
    throw ShapeError(fmt::format("layer {}: queries of batch {} and {} tokens in a step of batch {} and {} tokens",
                                 shape_.layer, in.q.batch, in.q.tokens, k.batch, k.tokens));
  }
  check_queries(in, info.valid);
}

void KVCache::Layer::attend(const AttendIn& in, const AttendOut& out, int ith, int nth) const {
  VQ_CHECK(nth >= 1 && ith >= 0 && ith < nth);
  if (in.q.tokens == 0) return;
  if (in.q.batch != batch()) {
    throw ShapeError(
        fmt::format("layer {}: queries of batch {}, the cache has {} rows", shape_.layer, in.q.batch, batch()));
  }
  const bool last_call = in.q.tokens == call_tokens_;
  check_queries(in, last_call ? std::span<const Range>(call_valid_) : std::span<const Range>());
  for (int b = 0; b < batch() && !last_call; ++b) {
    if (in.q.tokens <= offset(b)) continue;
    throw ShapeError(
        fmt::format("layer {}: {} queries, batch row {} has {} rows", shape_.layer, in.q.tokens, b, offset(b)));
  }
  if (recipe_.retention && !staging_.pending() && ith == 0) shared_.late.fetch_add(1, std::memory_order_relaxed);
  run(Attention(*this, in, out, {.values = true, .scores = scores_of(in)}), nth);
}

void KVCache::Layer::observe(const AttendIn& in) const {
  if (in.q.tokens != call_tokens_ || in.q.batch != batch() || !staging_.pending()) {
    throw ShapeError(fmt::format("layer {}: observe got {} queries of batch {}, the pending call has {} of batch {}",
                                 shape_.layer, in.q.tokens, in.q.batch, staging_.pending() ? call_tokens_ : 0,
                                 batch()));
  }
  check_queries(in, call_valid_);
  if (scores_of(in)) run(Attention(*this, in, {}, {.values = false, .scores = true}), 1);
}

bool KVCache::Layer::scores_of(const AttendIn& in) const {
  return scoring_ && staging_.pending() && in.q.tokens == call_tokens_ && recipe_.query_source != QuerySource::proxy;
}

// Masses of the pending call where no queries came: its keys stand in for them.
void KVCache::Layer::score_by_keys() const {
  AttendIn in;
  in.q.heads = shape_.kv_heads;
  in.q.batch = batch();
  in.q.tokens = staging_.tokens;
  run(Attention(*this, in, {}, {.values = false, .scores = true, .keys_as_queries = true}), 1);
}

void KVCache::Layer::run(const Attention& attention, int nth) const {
  if (nth == 1) {
    reserve_shared(attention.partial_floats(), attention.mass_floats());
  } else if (shared_.partials.size() < attention.partial_floats() || !shared_.finished ||
             shared_.masses.size() < attention.mass_floats()) {
    throw ShapeError(
        fmt::format("layer {}: several threads can attend only the tokens of a pending append", shape_.layer));
  }
  const int tasks = attention.tasks();
  for (;;) {
    const int task = shared_.ticket.fetch_add(1, std::memory_order_relaxed);
    if (task < tasks) {
      attention.run(task, shared_.partials.data(), shared_.finished.get(), shared_.masses.data());
      continue;
    }
    if (task == tasks + nth - 1) {  // the last thread to leave
      if (attention.pass().scores) {
        shared_.mass_groups = attention.mass_groups();
        shared_.mass_rows = attention.mass_rows();
        shared_.scored = true;
      }
      shared_.ticket.store(0, std::memory_order_relaxed);
    }
    return;
  }
}

void KVCache::Layer::reserve_shared(size_t partial_floats, size_t mass_floats) const {
  const int streams = batch() * shape_.kv_heads;
  if (shared_.streams < streams) {
    shared_.finished = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(streams));
    shared_.streams = streams;
  }
  // They are zero already, unless a call was left by some of its threads alone (a host that gave up in between).
  shared_.ticket.store(0, std::memory_order_relaxed);
  for (int i = 0; i < shared_.streams; ++i)
    shared_.finished[static_cast<size_t>(i)].store(0, std::memory_order_relaxed);
  if (shared_.partials.size() < partial_floats) shared_.partials.resize(partial_floats);
  if (shared_.masses.size() < mass_floats) shared_.masses.resize(mass_floats);
}

// R(-positions) on queries that the host rotated: they then stand that many positions nearer.
void KVCache::Layer::rotate_back(float* q, int n, int positions) const {
  const RopeSpec& rope = *shape_.rope;
  const int half = rope.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = -double{rope.frequencies[static_cast<size_t>(i)]} * positions;
    const auto cos = static_cast<float>(std::cos(angle)), sin = static_cast<float>(std::sin(angle));
    const int a = rope.interleaved ? 2 * i : i, b = rope.interleaved ? 2 * i + 1 : i + half;
    for (float* row = q; row < q + int64_t{n} * shape_.dim_k; row += shape_.dim_k) {
      const float x = row[a], y = row[b];
      row[a] = x * cos - y * sin;
      row[b] = x * sin + y * cos;
    }
  }
}

// What the splits and the scores of the pending call need. Where query heads are each call's own, one thread attends,
// which reserves for itself.
void KVCache::Layer::reserve_call() const {
  AttendIn in;
  in.q.heads = std::max(shape_.q_heads, shape_.kv_heads);
  in.q.tokens = call_tokens_;
  const Attention attention(*this, in, {}, {.values = true, .scores = scores_of(in)});
  reserve_shared(attention.partial_floats(), attention.mass_floats());
}

}  // namespace veloxquant
