#include "engine/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/scratch.h"
#include "kernels/kernels.h"

namespace veloxquant {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Masses of at most so many groups of tiles are kept.
constexpr int kMassGroups = 16;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Sizes of scratch pieces are rounded up so that each begins on its own cache line.
size_t padded(size_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

// Queries of one kv head over `tokens` of one batch row. Query i belongs to token i / group.
struct Attention::Tile {
  const Sequence* sequence;
  const RowTable* table;
  int batch_row, head;
  int index;     // in its stream
  Range tokens;  // in the call
  int queries;
  Range rows;         // of this task
  float* q;           // [queries][dim_k], scaled
  float* prepared;    // [queries][key_.query], of the coded keys
  float* q_pool;      // [queries][dim_k], as the pool's keys are scored with
  int32_t* position;  // [kSpanRows]
  float* weights;     // [queries][ld]: logits, then exp(logit - maximum so far)
  int64_t ld;
  bool keeps;     // weights of all rows, else of one span
  float* maxima;  // [span][queries] when weights are kept
  int spans;
  float* max;        // [queries]
  float* sum;        // [queries]
  float* factor;     // [queries], 1 / denominator
  float* share;      // [queries], of the masses
  float* acc_coded;  // [queries][value_.acc]
  float* acc_exact;  // [queries][value_dim_]
  float* codec_tile;
  float* span_weights(Range rows_) const { return weights + (keeps ? rows_.begin - rows.begin : 0); }
};

// Rows of one block that one codec call attends to.
struct Attention::Segment {
  enum class Kind : uint8_t { pool, coded, exact };
  const Codec* codec = nullptr;
  BlockView block;
  Range in_block;
  int row = 0;  // the first of them
  Kind kind = Kind::exact;
};

// Row r of a span stands at r + base, or at list[r - begin]; kNoPosition where there is none.
struct Attention::Positions {
  const int32_t* list = nullptr;
  int base = 0;
};

Attention::Attention(const KVCache::Layer& layer, const AttendIn& in, const AttendOut& out, Pass pass)
    : layer_(layer), shape_(layer.shape()), in_(in), out_(out), pass_(pass) {
  group_ = pass.keys_as_queries ? 1 : in.q.heads / shape_.kv_heads;
  tile_tokens_ = std::max(1, kTileQueries / group_);
  tiles_ = ceil_div(in.q.tokens, tile_tokens_);
  groups_ = pass.scores ? std::min(tiles_, kMassGroups) : tiles_;
  splits_ = 1;
  for (int b = 0; b < layer_.batch(); ++b) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const Sequence& sequence = layer_.sequences_[static_cast<size_t>(b)];
      const int rows = sequence.pooled() + sequence.table(head).size() + layer_.staged(b);
      mass_rows_ = std::max(mass_rows_, rows);
      if (tiles_ > 1) continue;
      const Tile tile = tile_at(b * shape_.kv_heads + head, 0);
      if (tile.tokens.empty()) continue;
      int spans = 0;
      for (Range span = span_at(tile, tile.rows, tile.rows.begin); !span.empty();
           span = span_at(tile, tile.rows, span.end)) {
        ++spans;
      }
      splits_ = std::max(splits_, spans);
    }
  }
  scale_ = in.scale != 0 ? in.scale : 1.0f / std::sqrt(static_cast<float>(shape_.dim_k));
  value_dim_ = layer_.dim(layer_.home(Side::value));
  key_ = layer_.coded(Side::key).floats();
  value_ = layer_.coded(Side::value).floats();
  exact_key_ = layer_.exact(Side::key).floats();
  exact_value_ = layer_.exact(Side::value).floats();
}

size_t Attention::partial_floats() const {
  if (splits_ == 1) return 0;
  const size_t queries = static_cast<size_t>(in_.q.tokens * group_);  // they fit one tile
  const size_t row = static_cast<size_t>(value_.acc + value_dim_ + 2);
  return static_cast<size_t>(streams() * splits_) * queries * row;
}

size_t Attention::mass_floats() const {
  if (!pass_.scores) return 0;
  const auto rows = static_cast<size_t>(mass_rows_);
  const size_t kept = splits_ == 1 ? 0 : static_cast<size_t>(in_.q.tokens * group_);
  return static_cast<size_t>(streams()) * rows * (static_cast<size_t>(groups_) + kept);
}

size_t Attention::scratch_floats() const {
  const size_t queries = static_cast<size_t>(tile_tokens_ * group_);
  const size_t staged =
      static_cast<size_t>(std::max(layer_.staged(Side::key).floats().tile, layer_.staged(Side::value).floats().tile));
  const size_t tile = std::max({static_cast<size_t>(key_.tile), static_cast<size_t>(value_.tile),
                                static_cast<size_t>(exact_key_.tile), static_cast<size_t>(exact_value_.tile), staged});
  const size_t spans = static_cast<size_t>(mass_rows_ / kSpanRows + 3);
  // Tiles that are scored keep the weights of all rows, others those of a span.
  const bool keeps = pass_.scores && splits_ == 1;
  const size_t kept_rows = keeps ? static_cast<size_t>(std::max(mass_rows_, kSpanRows)) : kSpanRows;
  const size_t weights = padded(queries * kept_rows) + padded(queries * (keeps ? spans : 1));
  const size_t rotated = layer_.rotates_pool_queries() ? padded(queries * static_cast<size_t>(shape_.dim_k)) : 0;
  return padded(queries * static_cast<size_t>(shape_.dim_k)) + padded(queries * static_cast<size_t>(key_.query)) +
         rotated + kSpanRows + weights + 4 * padded(queries) + padded(queries * static_cast<size_t>(value_.acc)) +
         padded(queries * static_cast<size_t>(value_dim_)) + padded(tile);
}

Range Attention::valid(int batch_row) const {
  const bool last_call = in_.q.tokens == layer_.call_tokens_;
  return last_call ? layer_.call_valid_[static_cast<size_t>(batch_row)] : Range{0, in_.q.tokens};
}

int Attention::position(int batch_row, int token) const {
  return layer_.offset(batch_row) - (valid(batch_row).end - token);
}

// One past the last row that the token can see by order. Rows of an evictor that came before a call are all older than
// it; after its commit their positions decide.
int Attention::row_end(const Tile& tile, int token) const {
  const int at = position(tile.batch_row, token);
  const int own = pass_.keys_as_queries && layer_.scorer().proxy_skips_own_row() ? 0 : 1;
  const int stored = tile.sequence->pooled() + tile.table->size();
  if (at >= tile.sequence->consumed) return stored + (at - tile.sequence->consumed) + own;
  if (tile.table->listed()) return stored;
  const int in_table = at - tile.table->base();
  return in_table < 0 ? tile.sequence->pooled() : tile.sequence->pooled() + in_table + own;
}

// The first position that a query at position `at` can see.
int Attention::first_seen(int at) const {
  const int window = in_.window > 0 ? std::max(0, at - in_.window + 1) : 0;
  return in_.chunk > 0 ? std::max(window, at / in_.chunk * in_.chunk) : window;
}

// Rows that any of the tile's tokens can see.
Range Attention::visible(const Tile& tile) const {
  if (tile.tokens.empty()) return {};
  int begin = tile.sequence->pooled() > 0 ? 0 : tile.sequence->front;
  if (!tile.table->listed() && tile.sequence->pooled() == 0) {
    begin = std::max(begin, first_seen(position(tile.batch_row, tile.tokens.begin)) - tile.table->base());
  }
  const int end = row_end(tile, tile.tokens.end - 1);
  return {std::min(begin, end), end};
}

// The span that row `row` of `rows` begins: rows of the pool, or rows of the table up to a whole kSpanRows of it.
Range Attention::span_at(const Tile& tile, Range rows, int row) const {
  const int pooled = tile.sequence->pooled();
  if (row < pooled) return {row, std::min({rows.end, pooled, (row / kSpanRows + 1) * kSpanRows})};
  row = std::max(row, pooled + tile.sequence->front);
  return {row, std::min(rows.end, pooled + ((row - pooled) / kSpanRows + 1) * kSpanRows)};
}

Range Attention::split_rows(const Tile& tile, Range rows, int split) const {
  Range span = span_at(tile, rows, rows.begin);
  for (; split > 0 && !span.empty(); --split) span = span_at(tile, rows, span.end);
  return span;
}

Attention::Tile Attention::tile_at(int stream, int index) const {
  Tile tile{};
  tile.batch_row = stream / shape_.kv_heads;
  tile.head = stream % shape_.kv_heads;
  tile.sequence = &layer_.sequences_[static_cast<size_t>(tile.batch_row)];
  tile.table = &tile.sequence->table(tile.head);
  tile.index = index;
  // Counted from the first token that is no padding, so that a row is cut as it would be alone.
  const Range own = valid(tile.batch_row);
  const int begin = std::min(own.end, own.begin + index * tile_tokens_);
  tile.tokens = {begin, std::min(own.end, begin + tile_tokens_)};
  tile.queries = tile.tokens.size() * group_;
  tile.rows = visible(tile);
  return tile;
}

float Attention::query_weight(const Tile& tile, int query) const {
  const Range tokens = valid(tile.batch_row);
  return layer_.scorer().query_weight(tile.tokens.begin + query / group_ - tokens.begin, tokens.size());
}

bool Attention::scored(const Tile& tile) const {
  if (!pass_.scores) return false;
  for (int i = 0; i < tile.queries; i += group_) {
    if (query_weight(tile, i) != 0) return true;
  }
  return false;
}

float* Attention::out_row(int batch_row, int token, int q_head) const {
  return out_.data + batch_row * out_.stride_batch + token * out_.stride_token + q_head * out_.stride_head;
}

void Attention::write_zeros(int batch_row, int head, int token) const {
  for (int g = 0; g < group_; ++g) std::fill_n(out_row(batch_row, token, head * group_ + g), shape_.dim_v, 0.0f);
}

void Attention::write_padding(int stream) const {
  const int batch_row = stream / shape_.kv_heads, head = stream % shape_.kv_heads;
  const Range own = valid(batch_row);
  for (int t = 0; t < in_.q.tokens; ++t) {
    if (t < own.begin || t >= own.end) write_zeros(batch_row, head, t);
  }
}

void Attention::run(int task, float* partials, std::atomic<int>* finished, float* masses) const {
  const int split = task % splits_;
  const int stream = task / splits_ / groups_;
  // Late tiles of a causal call see the most rows: they go first, so that threads finish together.
  const int group = groups_ - 1 - task / splits_ % groups_;
  if (pass_.scores && splits_ == 1) {
    std::fill_n(masses + int64_t{stream * groups_ + group} * mass_rows_, mass_rows_, 0.0f);
  }
  if (group == 0 && split == 0 && pass_.values) write_padding(stream);
  for (int index = group; index < tiles_; index += groups_) {
    Tile tile = tile_at(stream, index);
    tile.keeps = scored(tile);
    if (tile.tokens.empty() || !(pass_.values || tile.keeps)) continue;
    run_tile(tile, split, partials, finished, masses);
  }
}

void Attention::run_tile(Tile& tile, int split, float* partials, std::atomic<int>* finished, float* masses) const {
  const int stream = tile.batch_row * shape_.kv_heads + tile.head;
  const Range all = tile.rows;
  float* mass = nullptr;
  if (tile.keeps) {
    const int group = tile.index % groups_;
    mass = masses + int64_t{stream * groups_ + group} * mass_rows_;
  }
  if (splits_ > 1) tile.rows = split_rows(tile, all, split);
  gather(tile);
  if (splits_ > 1 && tile.keeps) {  // the weights must outlive the task
    tile.weights =
        masses + int64_t{streams() * groups_ + stream * in_.q.tokens * group_} * mass_rows_ + tile.rows.begin;
    tile.ld = mass_rows_;
  }
  for (Range span = span_at(tile, tile.rows, tile.rows.begin); !span.empty();
       span = span_at(tile, tile.rows, span.end)) {
    process_span(tile, span);
  }
  if (splits_ == 1) {
    normalise(tile);
    if (pass_.values) write(tile);
    int index = 0;
    for (Range span = span_at(tile, all, all.begin); tile.keeps && !span.empty(); span = span_at(tile, all, span.end)) {
      add_masses(tile, span, tile.maxima + int64_t{index++} * tile.queries, mass);
    }
    return;
  }

  const size_t queries = static_cast<size_t>(tile.queries);
  const size_t record = queries * static_cast<size_t>(value_.acc + value_dim_ + 2);
  // Ragged batch rows have fewer queries than there is room for.
  float* first = partials + static_cast<size_t>(stream) * (partial_floats() / static_cast<size_t>(streams()));
  float* mine = first + static_cast<size_t>(split) * record;
  mine = std::copy_n(tile.max, queries, mine);
  mine = std::copy_n(tile.sum, queries, mine);
  mine = std::copy_n(tile.acc_coded, queries * static_cast<size_t>(value_.acc), mine);
  std::copy_n(tile.acc_exact, queries * static_cast<size_t>(value_dim_), mine);
  if (finished[stream].fetch_add(1, std::memory_order_acq_rel) != splits_ - 1) return;
  finished[stream].store(0, std::memory_order_relaxed);
  merge(tile, first);
  normalise(tile);
  if (pass_.values) write(tile);
  if (!tile.keeps) return;
  std::fill_n(mass, mass_rows_, 0.0f);
  tile.weights += all.begin - tile.rows.begin;
  tile.rows = all;
  int index = 0;
  for (Range span = span_at(tile, all, all.begin); !span.empty(); span = span_at(tile, all, span.end)) {
    add_masses(tile, span, first + static_cast<size_t>(index++) * record, mass);
  }
}

void Attention::gather(Tile& tile) const {
  const size_t queries = static_cast<size_t>(tile.queries);
  float* next = Scratch::floats(scratch_floats());
  const auto take = [&next](size_t floats) { return std::exchange(next, next + padded(floats)); };
  tile.q = take(queries * static_cast<size_t>(shape_.dim_k));
  tile.prepared = take(queries * static_cast<size_t>(key_.query));
  tile.q_pool = tile.q;
  tile.position = reinterpret_cast<int32_t*>(take(kSpanRows));
  const bool all_rows = tile.keeps && splits_ == 1;
  tile.ld = all_rows ? tile.rows.size() : kSpanRows;
  tile.weights = take(queries * static_cast<size_t>(tile.ld));
  tile.maxima = take(queries * static_cast<size_t>(all_rows ? tile.rows.size() / kSpanRows + 3 : 1));
  tile.max = take(queries);
  tile.sum = take(queries);
  tile.factor = take(queries);
  tile.share = take(queries);
  tile.acc_coded = take(queries * static_cast<size_t>(value_.acc));
  tile.acc_exact = take(queries * static_cast<size_t>(value_dim_));

  float* row = tile.q;
  if (pass_.keys_as_queries) {
    const RowsView keys = layer_.staged_rows(Side::key, tile.batch_row, tile.head);
    const int first = tile.tokens.begin - valid(tile.batch_row).begin;
    row = std::copy_n(keys.x + first * keys.ld, tile.queries * keys.ld, row);
  } else {
    const Tensor& q = in_.q;
    for (int t = tile.tokens.begin; t < tile.tokens.end; ++t) {
      for (int g = 0; g < group_; ++g, row += shape_.dim_k) {
        const int64_t at =
            tile.batch_row * q.stride_batch + t * q.stride_token + (tile.head * group_ + g) * q.stride_head;
        kernels::to_f32(static_cast<const std::byte*>(q.data) + at * static_cast<int64_t>(size_of(q.dtype)),
                        shape_.dim_k, q.dtype, row);
      }
    }
  }
  kernels::scale(tile.q, row - tile.q, scale_);
  if (layer_.rotates_pool_queries()) {
    tile.q_pool = take(queries * static_cast<size_t>(shape_.dim_k));
    std::copy_n(tile.q, row - tile.q, tile.q_pool);
    layer_.rotate_back(tile.q_pool, tile.queries, tile.sequence->front);
  }
  tile.codec_tile = next;
  coded(tile, Side::key).prepare_query(tile.q, tile.queries, tile.prepared);
  std::fill_n(tile.max, queries, kMinusInfinity);
  std::fill_n(tile.sum, queries, 0.0f);
  std::fill_n(tile.acc_coded, queries * static_cast<size_t>(value_.acc), 0.0f);
  std::fill_n(tile.acc_exact, queries * static_cast<size_t>(value_dim_), 0.0f);
}

// visit(segment) over the rows of one side, ascending: the pool, coded blocks, exact rows, the call's own rows.
template <class Visit>
void Attention::for_each_segment(const Tile& tile, Side side, Range rows, Visit&& visit) const {
  Segment waiting;  // until the one after it is known
  const auto pass = [&](const Segment& segment) {
    if (segment.codec == waiting.codec) waiting.block.next = segment.block.data;
    if (waiting.codec) visit(waiting);
    waiting = segment;
  };
  using Kind = Segment::Kind;
  const StreamSide& stream = tile.sequence->side(tile.head, layer_.home(side));
  const int pooled = tile.sequence->pooled(), stored = pooled + tile.table->size();
  stream.pool.for_each(rows, [&](BlockView block, Range in_block, int row) {
    pass({&layer_.pooled(side), block, in_block, row, Kind::pool});
  });
  const Range in_table{rows.begin - pooled, rows.end - pooled};
  stream.coded.for_each(in_table, [&](BlockView block, Range in_block, int row) {
    pass({&stream.coded.codec(), block, in_block, row + pooled, Kind::coded});
  });
  stream.exact.for_each(in_table, [&](BlockView block, Range in_block, int row) {
    pass({&layer_.exact(side), block, in_block, row + pooled, Kind::exact});
  });
  if (rows.end > stored) {
    const RowsView staged = layer_.staged_rows(side, tile.batch_row, tile.head);
    const Codec& codec = layer_.staged(side);
    const int capacity = codec.format().capacity_rows();
    for (int row = std::max(rows.begin, stored); row < rows.end;) {
      const int count = std::min(capacity, rows.end - row);
      const float* data = staged.x + int64_t{row - stored} * staged.ld;
      pass({&codec, reinterpret_cast<const std::byte*>(data), Range{0, count}, row, Kind::exact});
      row += count;
    }
  }
  pass({});
}

void Attention::process_span(Tile& tile, Range rows) const {
  score(tile, rows);
  mask_and_softmax(tile, rows);
  if (tile.keeps && splits_ == 1)
    std::copy_n(tile.max, tile.queries, tile.maxima + int64_t{tile.spans++} * tile.queries);
  if (pass_.values) accumulate(tile, rows);
}

void Attention::score(Tile& tile, Range rows) const {
  float* logits = tile.span_weights(rows);
  // Released blocks give no logits; their rows are masked as holes.
  if (tile.table->holes() > 0) {
    for (int i = 0; i < tile.queries; ++i) std::fill_n(logits + i * tile.ld, rows.size(), 0.0f);
  }
  for_each_segment(tile, Side::key, rows, [&](const Segment& s) {
    const float* q = s.kind == Segment::Kind::coded  ? tile.prepared
                     : s.kind == Segment::Kind::pool ? tile.q_pool
                                                     : tile.q;
    s.codec->score(q, tile.queries, s.block, s.in_block, logits + (s.row - rows.begin), tile.ld, tile.codec_tile);
  });
}

Attention::Positions Attention::positions(const Tile& tile, Range rows) const {
  const Sequence& sequence = *tile.sequence;
  const int pooled = sequence.pooled(), stored = pooled + tile.table->size();
  const bool in_pool = rows.begin < pooled;
  const Range in_table{rows.begin - pooled, std::min(rows.end, stored) - pooled};
  const bool holes = !in_pool && !in_table.empty() && tile.table->has_holes(in_table);
  const bool late = position(tile.batch_row, tile.tokens.begin) < sequence.consumed;
  const bool reads_positions = in_.window > 0 || in_.chunk > 0 || !in_.alibi.empty() || in_.bias || late;
  if (!in_pool && !tile.table->listed() && !holes) return {nullptr, tile.table->base() - pooled};
  // What came before the call is older than all of it, whatever the order of rows.
  if ((in_pool || tile.table->listed()) && !holes && !reads_positions) return {};
  if (in_pool) {
    std::copy(sequence.pool.begin() + rows.begin, sequence.pool.begin() + rows.end, tile.position);
  } else if (!in_table.empty()) {
    tile.table->positions(in_table, tile.position);
  }
  for (int r = std::max(rows.begin, stored); r < rows.end; ++r) {
    tile.position[r - rows.begin] = sequence.consumed + (r - stored);
  }
  return {tile.position, 0};
}

void Attention::mask_and_softmax(Tile& tile, Range rows) const {
  const Positions where = positions(tile, rows);
  for (int i = 0; i < tile.queries; ++i) {
    const int token = tile.tokens.begin + i / group_;
    const int q_head = tile.head * group_ + i % group_;
    const int at = position(tile.batch_row, token);
    const int first = first_seen(at);
    const int begin = where.list ? rows.begin : std::clamp(first - where.base, rows.begin, rows.end);
    const int end = std::clamp(row_end(tile, token), begin, rows.end);
    float* logits = tile.span_weights(rows) + i * tile.ld;
    float* seen = logits + (begin - rows.begin);
    const int n = end - begin;
    if (in_.softcap != 0) kernels::softcap(seen, n, in_.softcap);
    if (where.list) {
      const float slope = in_.alibi.empty() ? 0.0f : in_.alibi[static_cast<size_t>(q_head)];
      for (int r = 0; r < n; ++r) {
        const int p = where.list[r];
        if (p == kNoPosition || p > at || p < first) {
          seen[r] = kMinusInfinity;
        } else {
          seen[r] -= slope * static_cast<float>(at - p);
          if (in_.bias) seen[r] += in_.bias[token * in_.bias_ld + p];
        }
      }
    } else {
      if (!in_.alibi.empty()) {
        kernels::subtract_distances(seen, n, in_.alibi[static_cast<size_t>(q_head)], at - (begin + where.base));
      }
      if (in_.bias) kernels::add(seen, n, in_.bias + token * in_.bias_ld + begin + where.base);
    }
    std::fill(logits, seen, 0.0f);
    std::fill(seen + n, logits + rows.size(), 0.0f);
    const float old = tile.max[i];
    const float added = n > 0 ? kernels::softmax_step(seen, n, &tile.max[i]) : 0.0f;
    if (tile.max[i] != old && old != kMinusInfinity) {
      const float factor = std::exp(old - tile.max[i]);
      tile.sum[i] *= factor;
      kernels::scale(tile.acc_coded + int64_t{i} * value_.acc, value_.acc, factor);
      kernels::scale(tile.acc_exact + int64_t{i} * value_dim_, value_dim_, factor);
    }
    tile.sum[i] += added;
  }
}

void Attention::accumulate(Tile& tile, Range rows) const {
  const float* weights = tile.span_weights(rows);
  for_each_segment(tile, Side::value, rows, [&](const Segment& s) {
    s.codec->accumulate(weights + (s.row - rows.begin), tile.ld, tile.queries, s.block, s.in_block,
                        s.kind == Segment::Kind::coded ? tile.acc_coded : tile.acc_exact, tile.codec_tile);
  });
}

// Splits in ascending order of rows, each brought to the common maximum.
void Attention::merge(Tile& tile, const float* partials) const {
  const size_t queries = static_cast<size_t>(tile.queries);
  const auto acc = static_cast<size_t>(value_.acc), dim_v = static_cast<size_t>(value_dim_);
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
      kernels::multiply_accumulate(1, value_dim_, 1, &factor, 1, 1, part_exact, value_dim_, exact, value_dim_);
    }
  }
}

void Attention::normalise(Tile& tile) const {
  for (int i = 0; i < tile.queries; ++i) {
    float factor = tile.max[i] == kMinusInfinity ? 0.0f : 1.0f / tile.sum[i];
    if (!in_.sinks.empty() && factor != 0) {
      // A sink joins the denominator only; brought to the larger of both maxima nothing overflows.
      const float sink = in_.sinks[static_cast<size_t>(tile.head * group_ + i % group_)];
      const float max = std::max(tile.max[i], sink);
      const float weight = std::exp(tile.max[i] - max);
      factor = weight / (weight * tile.sum[i] + std::exp(sink - max));
    }
    tile.factor[i] = factor;
  }
}

// The codec of the tile's stream: that of the recipe, or what was fitted to the stream.
const Codec& Attention::coded(const Tile& tile, Side side) const {
  return tile.sequence->side(tile.head, layer_.home(side)).coded.codec();
}

void Attention::write(Tile& tile) const {
  coded(tile, Side::value).finish(tile.acc_coded, tile.queries, tile.acc_exact);
  for (int i = 0; i < tile.queries; ++i) {
    const float* acc = tile.acc_exact + int64_t{i} * value_dim_;
    float* out = out_row(tile.batch_row, tile.tokens.begin + i / group_, tile.head * group_ + i % group_);
    for (int c = 0; c < shape_.dim_v; ++c) out[c] = acc[c] * tile.factor[i];
  }
}

// `maxima`: what the weights of the span's rows are relative to.
void Attention::add_masses(const Tile& tile, Range rows, const float* maxima, float* mass) const {
  for (int i = 0; i < tile.queries; ++i) {
    tile.share[i] = maxima[i] == kMinusInfinity ? 0.0f
                                                : query_weight(tile, i) / static_cast<float>(group_) * tile.factor[i] *
                                                      std::exp(maxima[i] - tile.max[i]);
  }
  kernels::multiply_accumulate(1, rows.size(), tile.queries, tile.share, 0, 1, tile.span_weights(rows), tile.ld,
                               mass + rows.begin, rows.size());
}

}  // namespace veloxquant
