#include "engine/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/check.h"
#include "core/scratch.h"
#include "kernels/kernels.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Sizes of scratch pieces are rounded up so that each begins on its own cache line.
size_t padded(size_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

// One task: `tokens` of one batch row times the query heads of one kv head. Query i belongs to token i / group.
struct Attention::Tile {
  int batch_row, head;
  Range tokens;
  int queries;
  float* q;          // [queries][dim_k], scaled
  float* prepared;   // [queries][key_.query], of the coded keys
  float* logits;     // [queries][kSpanRows]
  float* max;        // [queries]
  float* sum;        // [queries]
  float* acc_coded;  // [queries][value_.acc]
  float* acc_exact;  // [queries][dim_v]
  float* codec_tile;
};

// Rows of one block that one codec call attends to.
struct Attention::Segment {
  const Codec* codec = nullptr;
  BlockView block;
  Range in_block;
  int row = 0;  // of the stream, the first of them
  bool coded = false;
};

Attention::Attention(const KVCache::Layer& layer, const AttendIn& in, const AttendOut& out)
    : layer_(layer), shape_(layer.shape()), in_(in), out_(out) {
  group_ = shape_.q_heads / shape_.kv_heads;
  tile_tokens_ = std::max(1, kTileQueries / group_);
  tiles_ = ceil_div(in.q.tokens, tile_tokens_);
  splits_ = 1;
  if (tiles_ == 1) {
    for (int b = 0; b < layer_.batch(); ++b) {
      const Range rows = visible(b, valid(b));
      if (!rows.empty()) splits_ = std::max(splits_, ceil_div(rows.end, kSpanRows) - rows.begin / kSpanRows);
    }
  }
  scale_ = in.scale != 0 ? in.scale : 1.0f / std::sqrt(static_cast<float>(shape_.dim_k));
  key_ = layer_.coded(Side::key).floats();
  value_ = layer_.coded(Side::value).floats();
  exact_key_ = layer_.exact(Side::key).floats();
  exact_value_ = layer_.exact(Side::value).floats();
}

size_t Attention::partial_floats() const {
  if (splits_ == 1) return 0;
  const size_t queries = static_cast<size_t>(in_.q.tokens * group_);  // they fit one tile
  const size_t row = static_cast<size_t>(value_.acc + shape_.dim_v + 2);
  return static_cast<size_t>(streams() * splits_) * queries * row;
}

size_t Attention::scratch_floats() const {
  const size_t queries = static_cast<size_t>(tile_tokens_ * group_);
  const size_t staged =
      static_cast<size_t>(std::max(layer_.staged(Side::key).floats().tile, layer_.staged(Side::value).floats().tile));
  const size_t tile = std::max({static_cast<size_t>(key_.tile), static_cast<size_t>(value_.tile),
                                static_cast<size_t>(exact_key_.tile), static_cast<size_t>(exact_value_.tile), staged});
  return padded(queries * static_cast<size_t>(shape_.dim_k)) + padded(queries * static_cast<size_t>(key_.query)) +
         queries * kSpanRows + 2 * padded(queries) + padded(queries * static_cast<size_t>(value_.acc)) +
         padded(queries * static_cast<size_t>(shape_.dim_v)) + padded(tile);
}

Range Attention::valid(int batch_row) const {
  const bool last_call = in_.q.tokens == layer_.call_tokens_;
  return last_call ? layer_.call_valid_[static_cast<size_t>(batch_row)] : Range{0, in_.q.tokens};
}

int Attention::query_row(int batch_row, int token) const {
  return layer_.rows(batch_row) - (valid(batch_row).end - token);
}

// The first row that the query at row `at` can see.
int Attention::first_seen(int at) const {
  const int window = in_.window > 0 ? std::max(0, at - in_.window + 1) : 0;
  return in_.chunk > 0 ? std::max(window, at / in_.chunk * in_.chunk) : window;
}

// Rows that any of the tokens can see.
Range Attention::visible(int batch_row, Range tokens) const {
  if (tokens.empty()) return {};
  const int first = query_row(batch_row, tokens.begin);
  return {first_seen(first), query_row(batch_row, tokens.end - 1) + 1};
}

float* Attention::out_row(int batch_row, int token, int q_head) const {
  return out_.data + batch_row * out_.stride_batch + token * out_.stride_token + q_head * out_.stride_head;
}

void Attention::write_zeros(int batch_row, int head, int token) const {
  for (int g = 0; g < group_; ++g) std::fill_n(out_row(batch_row, token, head * group_ + g), shape_.dim_v, 0.0f);
}

void Attention::run(int task, float* partials, std::atomic<int>* finished) const {
  const int split = task % splits_;
  const int stream = task / splits_ / tiles_;
  // Late tiles of a causal call see the most rows: they go first, so that threads finish together.
  const int tile_index = tiles_ - 1 - task / splits_ % tiles_;
  Tile tile{};
  tile.batch_row = stream / shape_.kv_heads;
  tile.head = stream % shape_.kv_heads;
  const Range in_call{tile_index * tile_tokens_, std::min(in_.q.tokens, (tile_index + 1) * tile_tokens_)};
  const Range stored = valid(tile.batch_row);
  tile.tokens = {std::max(in_call.begin, stored.begin), std::min(in_call.end, stored.end)};
  if (split == 0) {
    for (int t = in_call.begin; t < in_call.end; ++t) {
      if (t < tile.tokens.begin || t >= tile.tokens.end) write_zeros(tile.batch_row, tile.head, t);
    }
  }
  if (tile.tokens.empty()) return;

  gather(tile);
  Range rows = visible(tile.batch_row, tile.tokens);
  if (splits_ > 1) {
    const int span = rows.begin / kSpanRows + split;
    rows = {std::max(rows.begin, span * kSpanRows), std::min(rows.end, (span + 1) * kSpanRows)};
  }
  for (int begin = rows.begin; begin < rows.end;) {
    const int end = std::min(rows.end, (begin / kSpanRows + 1) * kSpanRows);
    process_span(tile, {begin, end});
    begin = end;
  }
  if (splits_ == 1) return write(tile);

  const size_t queries = static_cast<size_t>(tile.queries);
  const size_t record = queries * static_cast<size_t>(value_.acc + shape_.dim_v + 2);
  // Ragged batch rows have fewer queries than there is room for.
  float* first = partials + static_cast<size_t>(stream) * (partial_floats() / static_cast<size_t>(streams()));
  float* mine = first + static_cast<size_t>(split) * record;
  mine = std::copy_n(tile.max, queries, mine);
  mine = std::copy_n(tile.sum, queries, mine);
  mine = std::copy_n(tile.acc_coded, queries * static_cast<size_t>(value_.acc), mine);
  std::copy_n(tile.acc_exact, queries * static_cast<size_t>(shape_.dim_v), mine);
  if (finished[stream].fetch_add(1, std::memory_order_acq_rel) != splits_ - 1) return;
  finished[stream].store(0, std::memory_order_relaxed);
  merge(tile, first);
  write(tile);
}

void Attention::gather(Tile& tile) const {
  tile.queries = tile.tokens.size() * group_;
  const size_t queries = static_cast<size_t>(tile.queries);
  float* next = Scratch::floats(scratch_floats());
  const auto take = [&next](size_t floats) { return std::exchange(next, next + padded(floats)); };
  tile.q = take(queries * static_cast<size_t>(shape_.dim_k));
  tile.prepared = take(queries * static_cast<size_t>(key_.query));
  tile.logits = take(queries * kSpanRows);
  tile.max = take(queries);
  tile.sum = take(queries);
  tile.acc_coded = take(queries * static_cast<size_t>(value_.acc));
  tile.acc_exact = take(queries * static_cast<size_t>(shape_.dim_v));
  tile.codec_tile = next;

  const Tensor& q = in_.q;
  float* row = tile.q;
  for (int t = tile.tokens.begin; t < tile.tokens.end; ++t) {
    for (int g = 0; g < group_; ++g, row += shape_.dim_k) {
      const int64_t at =
          tile.batch_row * q.stride_batch + t * q.stride_token + (tile.head * group_ + g) * q.stride_head;
      kernels::to_f32(static_cast<const std::byte*>(q.data) + at * static_cast<int64_t>(size_of(q.dtype)), shape_.dim_k,
                      q.dtype, row);
    }
  }
  kernels::scale(tile.q, row - tile.q, scale_);
  layer_.coded(Side::key).prepare_query(tile.q, tile.queries, tile.prepared);
  std::fill_n(tile.max, queries, kMinusInfinity);
  std::fill_n(tile.sum, queries, 0.0f);
  std::fill_n(tile.acc_coded, queries * static_cast<size_t>(value_.acc), 0.0f);
  std::fill_n(tile.acc_exact, queries * static_cast<size_t>(shape_.dim_v), 0.0f);
}

// visit(segment) over the rows of one side, ascending: coded blocks, exact tail, the call's own rows.
template <class Visit>
void Attention::for_each_segment(const Tile& tile, Side side, Range rows, Visit&& visit) const {
  Segment waiting;  // until the one after it is known
  const auto pass = [&](const Segment& segment) {
    if (segment.codec == waiting.codec) waiting.block.next = segment.block.data;
    if (waiting.codec) visit(waiting);
    waiting = segment;
  };
  const Sequence& sequence = layer_.sequences_[static_cast<size_t>(tile.batch_row)];
  const StreamSide& stream = sequence.side(tile.head, side);
  stream.coded.for_each(rows, [&](BlockView block, Range in_block, int row) {
    pass({&layer_.coded(side), block, in_block, row, true});
  });
  stream.exact.for_each(rows, [&](BlockView block, Range in_block, int row) {
    pass({&layer_.exact(side), block, in_block, row, false});
  });
  if (rows.end > sequence.rows) {
    const RowsView staged = layer_.staged_rows(side, tile.batch_row, tile.head);
    const Codec& codec = layer_.staged(side);
    const int capacity = codec.format().capacity_rows();
    for (int row = std::max(rows.begin, sequence.rows); row < rows.end;) {
      const int count = std::min(capacity, rows.end - row);
      const float* data = staged.x + int64_t{row - sequence.rows} * staged.ld;
      pass({&codec, reinterpret_cast<const std::byte*>(data), Range{0, count}, row, false});
      row += count;
    }
  }
  pass({});
}

void Attention::process_span(Tile& tile, Range rows) const {
  score(tile, rows);
  mask_and_softmax(tile, rows);
  accumulate(tile, rows);
}

void Attention::score(Tile& tile, Range rows) const {
  for_each_segment(tile, Side::key, rows, [&](const Segment& s) {
    s.codec->score(s.coded ? tile.prepared : tile.q, tile.queries, s.block, s.in_block,
                   tile.logits + (s.row - rows.begin), kSpanRows, tile.codec_tile);
  });
}

void Attention::mask_and_softmax(Tile& tile, Range rows) const {
  for (int i = 0; i < tile.queries; ++i) {
    const int token = tile.tokens.begin + i / group_;
    const int q_head = tile.head * group_ + i % group_;
    const int at = query_row(tile.batch_row, token);
    const int begin = std::clamp(first_seen(at), rows.begin, rows.end);
    const int end = std::clamp(at + 1, begin, rows.end);
    float* logits = tile.logits + int64_t{i} * kSpanRows;
    float* seen = logits + (begin - rows.begin);
    const int n = end - begin;
    if (in_.softcap != 0) kernels::softcap(seen, n, in_.softcap);
    if (!in_.alibi.empty()) {
      kernels::subtract_distances(seen, n, in_.alibi[static_cast<size_t>(q_head)], at - begin);
    }
    if (in_.bias) kernels::add(seen, n, in_.bias + token * in_.bias_ld + begin);
    std::fill(logits, seen, 0.0f);
    std::fill(seen + n, logits + rows.size(), 0.0f);
    const float old = tile.max[i];
    const float added = n > 0 ? kernels::softmax_step(seen, n, &tile.max[i]) : 0.0f;
    if (tile.max[i] != old && old != kMinusInfinity) {
      const float factor = std::exp(old - tile.max[i]);
      tile.sum[i] *= factor;
      kernels::scale(tile.acc_coded + int64_t{i} * value_.acc, value_.acc, factor);
      kernels::scale(tile.acc_exact + int64_t{i} * shape_.dim_v, shape_.dim_v, factor);
    }
    tile.sum[i] += added;
  }
}

void Attention::accumulate(Tile& tile, Range rows) const {
  for_each_segment(tile, Side::value, rows, [&](const Segment& s) {
    s.codec->accumulate(tile.logits + (s.row - rows.begin), kSpanRows, tile.queries, s.block, s.in_block,
                        s.coded ? tile.acc_coded : tile.acc_exact, tile.codec_tile);
  });
}

// Splits in ascending order of rows, each brought to the common maximum.
void Attention::merge(Tile& tile, const float* partials) const {
  const size_t queries = static_cast<size_t>(tile.queries);
  const auto acc = static_cast<size_t>(value_.acc), dim_v = static_cast<size_t>(shape_.dim_v);
  const size_t record = queries * (acc + dim_v + 2);
  for (size_t i = 0; i < queries; ++i) {
    float max = kMinusInfinity;
    for (int s = 0; s < splits_; ++s) max = std::max(max, partials[static_cast<size_t>(s) * record + i]);
    tile.max[i] = max;
    tile.sum[i] = 0;
    float* coded = tile.acc_coded + i * acc;
    float* exact = tile.acc_exact + i * dim_v;
    std::fill_n(coded, acc, 0.0f);
    std::fill_n(exact, dim_v, 0.0f);
    for (int s = 0; s < splits_; ++s) {
      const float* part = partials + static_cast<size_t>(s) * record;
      if (part[i] == kMinusInfinity) continue;
      const float factor = std::exp(part[i] - max);
      tile.sum[i] += factor * part[queries + i];
      const float* part_coded = part + 2 * queries + i * acc;
      const float* part_exact = part + 2 * queries + queries * acc + i * dim_v;
      kernels::multiply_accumulate(1, value_.acc, 1, &factor, 1, 1, part_coded, value_.acc, coded, value_.acc);
      kernels::multiply_accumulate(1, shape_.dim_v, 1, &factor, 1, 1, part_exact, shape_.dim_v, exact, shape_.dim_v);
    }
  }
}

void Attention::write(Tile& tile) const {
  const auto dim_v = static_cast<size_t>(shape_.dim_v);
  layer_.coded(Side::value).finish(tile.acc_coded, tile.queries, tile.acc_exact);
  for (int i = 0; i < tile.queries; ++i) {
    const int token = tile.tokens.begin + i / group_;
    const int q_head = tile.head * group_ + i % group_;
    float factor = tile.max[i] == kMinusInfinity ? 0.0f : 1.0f / tile.sum[i];
    if (!in_.sinks.empty() && factor != 0) {
      // A sink joins the denominator only; brought to the larger of both maxima nothing overflows.
      const float sink = in_.sinks[static_cast<size_t>(q_head)];
      const float max = std::max(tile.max[i], sink);
      const float weight = std::exp(tile.max[i] - max);
      factor = weight / (weight * tile.sum[i] + std::exp(sink - max));
    }
    const float* acc = tile.acc_exact + static_cast<size_t>(i) * dim_v;
    float* out = out_row(tile.batch_row, token, q_head);
    for (size_t c = 0; c < dim_v; ++c) out[c] = acc[c] * factor;
  }
}

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
  if (q.heads != shape_.q_heads || q.dim != shape_.dim_k || q.tokens < 0 || (!q.data && q.tokens > 0)) {
    fail(fmt::format("queries are [tokens {}][heads {}][dim {}]{}, expected {} heads of {}", q.tokens, q.heads, q.dim,
                     q.data ? "" : " without data", shape_.q_heads, shape_.dim_k));
  }
  if (!in.alibi.empty() && in.alibi.size() != static_cast<size_t>(shape_.q_heads)) {
    fail(fmt::format("{} ALiBi slopes for {} query heads", in.alibi.size(), shape_.q_heads));
  }
  if (!in.sinks.empty() && in.sinks.size() != static_cast<size_t>(shape_.q_heads)) {
    fail(fmt::format("{} sink logits for {} query heads", in.sinks.size(), shape_.q_heads));
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
    if (in.q.tokens <= rows(b)) continue;
    throw ShapeError(
        fmt::format("layer {}: {} queries, batch row {} has {} rows", shape_.layer, in.q.tokens, b, rows(b)));
  }
  const Attention attention(*this, in, out);
  if (nth == 1) {
    reserve_shared(attention.partial_floats());
  } else if (shared_.partials.size() < attention.partial_floats() || !shared_.finished) {
    throw ShapeError(
        fmt::format("layer {}: several threads can attend only the tokens of a pending append", shape_.layer));
  }
  const int tasks = attention.tasks();
  for (;;) {
    const int task = shared_.ticket.fetch_add(1, std::memory_order_relaxed);
    if (task < tasks) {
      attention.run(task, shared_.partials.data(), shared_.finished.get());
      continue;
    }
    if (task == tasks + nth - 1) shared_.ticket.store(0, std::memory_order_relaxed);  // the last thread to leave
    return;
  }
}

void KVCache::Layer::reserve_shared(size_t partial_floats) const {
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
}

// The splits of a call of `tokens` queries over the rows that are there now.
size_t KVCache::Layer::partial_floats(int tokens) const {
  AttendIn in;
  in.q.tokens = tokens;
  return Attention(*this, in, {}).partial_floats();
}

}  // namespace veloxquant
