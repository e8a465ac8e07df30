// The one place where stored rows change: scoring and dropping, sealing what a call made ripe, and taking rows back.
//
// A row is rounded to the cache's element type before anything is computed from it, whether it waits in the exact tail
// first (whose codec rounds) or is sealed at once: so the stored bytes do not depend on how the tokens were cut into
// calls.
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "core/check.h"
#include "engine/attention.h"
#include "engine/layer.h"
#include "kernels/kernels.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

RowsView behind(const RowsView& rows, int count) {
  return {rows.x + count * rows.ld, rows.ld, rows.rows - count, rows.dim};
}

}  // namespace

void KVCache::Layer::commit() {
  if (!staging_.pending()) {
    shared_.partials = std::vector<float>();  // gives the memory back
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  if (scoring_) {
    if (!shared_.scored && recipe_.query_source == QuerySource::true_queries) {
      throw ValueError(
          fmt::format("layer {}: query_source is true, and no queries came before the call was settled", shape_.layer));
    }
    staging_.key_proxy = !shared_.scored;
    ++(staging_.key_proxy ? counts_.key_proxy : counts_.true_query);
    if (staging_.key_proxy) score_by_keys();
  }
  for (int b = 0; b < batch(); ++b) commit_sequence(b);
  staging_ = {};
  scoring_ = shared_.scored = false;
  shared_.partials = std::vector<float>();
  shared_.masses = std::vector<float>();
  commit_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void KVCache::Layer::commit_sequence(int b) {
  Sequence& sequence = sequences_[static_cast<size_t>(b)];
  const int tokens = staged(b);
  if (tokens == 0) return;
  const int pooled = pool_first_rows(sequence, b);
  const Retention* retention = recipe_.retention.get();
  const bool selects =
      retention && (retention->when() == Retention::When::every_call || staging_.phase != Phase::decode);
  // A prompt waits in its exact form till its rows are chosen.
  const bool waits = selects && retention->when() == Retention::When::prefill;
  const bool chooses = selects && !(waits && staging_.phase == Phase::prefill_more);
  for (size_t t = 0; t < sequence.tables.size(); ++t) {
    RowTable& table = sequence.tables[t];
    const auto only = static_cast<int>(t);
    const Range heads = sequence.tables.size() == 1 ? Range{0, shape_.kv_heads} : Range{only, only + 1};
    table.append(tokens - pooled, sequence.consumed + pooled);
    std::vector<float> passing;  // scores that are not kept
    std::vector<int> dropped;
    if (retention || recipe_.sink_pool) score(sequence, table, heads, b, passing);
    if (chooses) {
      const std::vector<float>& scores = scorer().stored() ? table.scores() : passing;
      retention->select({table.listed_positions(), scores, sequence.consumed + tokens}, dropped);
    }
    if (tokens == 1 && dropped.size() == 1 && replaces_rows_) {
      replace(sequence, table, heads, b, dropped.front());
      continue;
    }
    if (recipe_.sink_pool) fill_pool(sequence, b);
    for (int head = heads.begin; head < heads.end; ++head) {
      for (Side side : sides()) {
        store(sequence.side(head, side), side, table, behind(staged_rows(side, b, head), pooled), waits);
      }
    }
    drop(sequence, table, heads, dropped);
    if (!waits || !chooses) continue;
    for (int head = heads.begin; head < heads.end; ++head) {
      for (Side side : sides()) {
        store(sequence.side(head, side), side, table, {nullptr, dim(side), 0, dim(side)}, false);
      }
    }
  }
  sequence.consumed += tokens;
  const int window = recipe_.sink_window.window;
  const int front = window > 0 ? std::max(sequence.front, sequence.table(0).size() - window) : sequence.front;
  if (front > 0) leave_front(sequence, front);  // popped rows too may have waited for this commit's seals
}

// The first rows of a sequence, up to as many as stand apart for ever. Returns how many of the call they are.
int KVCache::Layer::pool_first_rows(Sequence& sequence, int b) {
  const int room = recipe_.sink_window.sinks - sequence.pooled();
  const int count = recipe_.sink_pool ? 0 : std::clamp(room, 0, staged(b));
  if (count == 0) return 0;
  for (int head = 0; head < shape_.kv_heads; ++head) {
    for (Side side : sides()) {
      const RowsView fresh = staged_rows(side, b, head);
      sequence.side(head, side).pool.append({fresh.x, fresh.ld, count, fresh.dim});
    }
  }
  for (int i = 0; i < count; ++i) sequence.pool.push_back(sequence.consumed + i);
  return count;
}

// --- scores --------------------------------------------------------------------------------------

// Numbers of all rows of the table, those of the call last: kept in the table or, where they live for this commit only,
// in `passing`.
void KVCache::Layer::score(Sequence& sequence, RowTable& table, Range heads, int b, std::vector<float>& passing) const {
  const Scorer& scorer = recipe_.sink_pool ? recipe_.sink_pool->scorer() : this->scorer();
  const auto rows = static_cast<size_t>(table.size());
  std::vector<float>& scores = scorer.stored() ? table.scores() : passing;
  const int first = table.size() - staged(b);
  scores.resize(rows, 0.0f);
  std::vector<float> key(static_cast<size_t>(shape_.dim_k));
  for (int r = 0; scorer.reads_keys() && r < staged(b); ++r) {
    float sum = 0;
    for (int head = heads.begin; head < heads.end; ++head) {
      const RowsView keys = staged_rows(Side::key, b, head);
      kernels::round_to(keys.x + r * keys.ld, keys.dim, store_, key.data());
      sum += scorer.of_key(key.data(), keys.dim);
    }
    scores[static_cast<size_t>(first + r)] = sum / static_cast<float>(heads.size());
  }
  if (!scoring_) return;
  const std::vector<float> masses = mass(table, heads, b);
  scorer.update(
      {.tokens = staged(b), .phase = staging_.phase, .key_proxy = staging_.key_proxy, .first = sequence.consumed == 0},
      masses, scores);
}

// Column sums of the groups, ascending, then a mean over heads.
std::vector<float> KVCache::Layer::mass(const RowTable& table, Range heads, int b) const {
  std::vector<float> sum(static_cast<size_t>(table.size()), 0.0f);
  for (int head = heads.begin; head < heads.end; ++head) {
    for (int group = 0; group < shared_.mass_groups; ++group) {
      const int stream = b * shape_.kv_heads + head;
      const float* masses = shared_.masses.data() + int64_t{stream * shared_.mass_groups + group} * shared_.mass_rows;
      kernels::add(sum.data(), table.size(), masses);
    }
  }
  if (heads.size() > 1) kernels::scale(sum.data(), table.size(), 1.0f / static_cast<float>(heads.size()));
  return sum;
}

// --- dropping ------------------------------------------------------------------------------------

// The call's one row takes the place of `victim`, which may be itself.
void KVCache::Layer::replace(Sequence& sequence, RowTable& table, Range heads, int b, int victim) {
  const bool stays_out = victim == table.size() - 1;
  if (stays_out) {
    table.truncate(victim);
    return;
  }
  table.replace_by_last(victim);
  for (int head = heads.begin; head < heads.end; ++head) {
    for (Side side : sides()) {
      StreamSide& stream = sequence.side(head, side);
      const RowsView fresh = staged_rows(side, b, head);
      std::vector<float> row(static_cast<size_t>(fresh.dim));
      kernels::round_to(fresh.x, fresh.dim, store_, row.data());
      (victim < stream.coded.end() ? stream.coded : stream.exact).put(victim, {row.data(), fresh.dim, 1, fresh.dim});
    }
  }
}

// Rows vanish, and those behind them move down; inside sealed units of several rows they leave holes.
void KVCache::Layer::drop(Sequence& sequence, RowTable& table, Range heads, std::span<const int> rows) const {
  if (rows.empty()) return;
  int sealed = 0;
  for (Side side : sides()) {
    const BlockList& list = sequence.side(heads.begin, side).coded;
    if (list.codec().format().unit_rows > 1) sealed = std::max(sealed, list.end());
  }
  const auto first = std::lower_bound(rows.begin(), rows.end(), sealed);
  for (int row : rows.subspan(0, static_cast<size_t>(first - rows.begin()))) table.vacate(row);
  const std::span<const int> gone(first, rows.end());
  for (int head = heads.begin; head < heads.end; ++head) {
    for (Side side : sides()) {
      StreamSide& stream = sequence.side(head, side);
      const auto coded = std::lower_bound(gone.begin(), gone.end(), stream.coded.end());
      const std::span<const int> in_coded(gone.begin(), coded), in_exact(coded, gone.end());
      // From the back: the exact rows begin where the coded ones end.
      stream.exact.remove(in_exact);
      if (!in_coded.empty()) {
        std::vector<float> tail(static_cast<size_t>(stream.exact.rows()) * static_cast<size_t>(dim(side)));
        stream.exact.decode({stream.exact.begin(), stream.exact.end()}, tail.data(), dim(side));
        const int count = stream.exact.rows();
        stream.coded.remove(in_coded);
        stream.exact.restart(stream.coded.end());
        stream.exact.append({tail.data(), dim(side), count, dim(side)});
      }
      stream.coded.release_vacant([&](Range block) { return table.vacant(block); });
    }
  }
  table.remove(gone);
}

// Rows behind the window are no longer seen; what no sealed unit needs any more is given back.
void KVCache::Layer::leave_front(Sequence& sequence, int front) const {
  sequence.front = front;
  for (int head = 0; head < shape_.kv_heads; ++head) {
    for (Side side : sides()) {
      StreamSide& stream = sequence.side(head, side);
      stream.coded.drop_front(std::min(sequence.front, stream.coded.end()));
      const bool seals = recipe_.placement->frontier(side, 1 << 30) > 0;
      if (!seals) stream.exact.drop_front(sequence.front);  // else rows wait for their unit
    }
  }
}

// --- the pool of sinks ---------------------------------------------------------------------------

// Key units that this commit will seal give their sinks to the pool while it has room; each leaves a hole.
void KVCache::Layer::fill_pool(Sequence& sequence, int b) {
  RowTable& table = sequence.table(0);
  const SinkPool& pool = *recipe_.sink_pool;
  const int sealed = sequence.side(0, Side::key).coded.end();
  const int frontier = recipe_.placement->frontier(Side::key, table.size());
  if (frontier == sealed || sequence.pooled() == pool.capacity()) return;
  const int unit = coded(Side::key).format().unit_rows;
  const std::vector<int> top = pool.top(table.scores(), sequence.wanted);  // best first
  const int first_fresh = table.size() - staged(b);
  for (int begin = sealed; begin < frontier; begin += unit) {
    for (int row : top) {
      if (row < begin || row >= begin + unit || sequence.pooled() == pool.capacity()) continue;
      for (int head = 0; head < shape_.kv_heads; ++head) {
        for (Side side : sides()) {
          StreamSide& stream = sequence.side(head, side);
          std::vector<float> x(static_cast<size_t>(dim(side)));
          read_row(stream, staged_rows(side, b, head), first_fresh, row, x.data());
          stream.pool.append({x.data(), dim(side), 1, dim(side)});
        }
      }
      sequence.pool.push_back(table.base() + row);
      table.vacate(row);
    }
  }
}

// A row that is exact still.
void KVCache::Layer::read_row(const StreamSide& stream, const RowsView& fresh, int first_fresh, int row,
                              float* out) const {
  VQ_CHECK(row >= stream.coded.end());
  if (row < first_fresh) {
    stream.exact.decode({row, row + 1}, out, fresh.dim);
  } else {
    kernels::round_to(fresh.x + int64_t{row - first_fresh} * fresh.ld, fresh.dim, store_, out);
  }
}

void KVCache::Layer::want_sinks(int batch_row, std::span<const int32_t> positions) {
  std::vector<int32_t> wanted(positions.begin(), positions.end());
  std::sort(wanted.begin(), wanted.end());
  if (!wanted.empty() && wanted.front() < 0) {
    throw ValueError(
        fmt::format("layer {}: sink position {} given, must not be negative", shape_.layer, wanted.front()));
  }
  if (const auto twice = std::adjacent_find(wanted.begin(), wanted.end()); twice != wanted.end()) {
    throw ValueError(fmt::format("layer {}: sink position {} is given twice", shape_.layer, *twice));
  }
  if (batch_row < 0 || (batch() > 0 && batch_row >= batch())) {
    throw std::out_of_range(fmt::format("sink positions: batch row {} given, {} rows exist", batch_row, batch()));
  }
  if (batch() == 0) {
    wanted_[batch_row] = std::move(wanted);
  } else {
    sequences_[static_cast<size_t>(batch_row)].wanted = std::move(wanted);
  }
}

// --- sealing -------------------------------------------------------------------------------------

// The last rows of the table are `fresh`. Coded rows end at the new frontier; what was exact below it is sealed with
// it. Held rows all stay exact.
void KVCache::Layer::store(StreamSide& stream, Side side, const RowTable& table, const RowsView& fresh,
                           bool hold) const {
  const int rows = table.size(), old = rows - fresh.rows;
  const int64_t d = fresh.dim;
  const int frontier = hold ? stream.coded.end() : recipe_.placement->frontier(side, rows);
  if (frontier < stream.coded.end()) {  // rows of an evictor: fewer than there were
    stream.exact.append(fresh);
    return;
  }
  VQ_CHECK(frontier <= rows);
  seal(stream, side, table, frontier, fresh, old);
  const int from_fresh = std::max(0, frontier - old);
  if (frontier >= old) {
    stream.exact.restart(frontier);
  } else {
    stream.exact.drop_front(frontier);
  }
  stream.exact.append({fresh.x + from_fresh * d, d, fresh.rows - from_fresh, fresh.dim});
}

// Codes the rows up to `frontier`: those before `first_fresh` come from the exact tail, the others from `fresh`. A few
// blocks at a time, so that what stands in fp32 stays in a near cache.
void KVCache::Layer::seal(StreamSide& stream, Side side, const RowTable& table, int frontier, const RowsView& fresh,
                          int first_fresh) const {
  constexpr int kRows = 128;
  if (stream.coded.end() < frontier) fit(stream, fresh, first_fresh);
  const int unit = stream.coded.codec().format().unit_rows;
  const int step = std::min(frontier - stream.coded.end(), std::max(1, kRows / unit) * unit);
  const int64_t d = fresh.dim;
  const auto ripe = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(step * d));
  for (int row = stream.coded.end(); row < frontier; row += step) {
    const int count = std::min(step, frontier - row);
    gather(stream, fresh, first_fresh, {row, row + count}, ripe.get());
    for (int u = row; table.has_holes({row, row + count}) && u < row + count; u += unit) {
      fill_holes(table, side, {u, u + unit}, ripe.get() + int64_t{u - row} * d, d);
    }
    stream.coded.append({ripe.get(), d, count, fresh.dim});
  }
}

// Rows as they are stored exactly: those before `first_fresh` from the exact tail, the others from `fresh`.
void KVCache::Layer::gather(const StreamSide& stream, const RowsView& fresh, int first_fresh, Range rows,
                            float* out) const {
  const int64_t d = fresh.dim;
  const int from_exact = std::clamp(first_fresh - rows.begin, 0, rows.size());
  stream.exact.decode({rows.begin, rows.begin + from_exact}, out, d);
  if (from_exact == rows.size()) return;
  const float* from = fresh.x + (rows.begin + from_exact - first_fresh) * d;
  kernels::round_to(from, (rows.size() - from_exact) * d, store_, out + from_exact * d);
}

// A codec that needs a fit gets it from the first rows of the stream, when the first of them are sealed.
void KVCache::Layer::fit(StreamSide& stream, const RowsView& fresh, int first_fresh) const {
  const Codec& codec = stream.coded.codec();
  if (codec.fit_rows() == 0) return;
  const int rows = codec.fit_rows();
  VQ_CHECK(stream.coded.end() == 0 && rows <= first_fresh + fresh.rows);
  std::vector<float> first(static_cast<size_t>(rows) * static_cast<size_t>(fresh.dim));
  gather(stream, fresh, first_fresh, {0, rows}, first.data());
  stream.fitted = codec.fit({first.data(), fresh.dim, rows, fresh.dim});
  stream.coded.use(*stream.fitted);
}

// What no row is coded with any more is forgotten, so that other rows decide anew.
void KVCache::Layer::unfit(StreamSide& stream, Side side) const {
  if (!stream.fitted || stream.coded.end() > 0) return;
  stream.coded.use(coded(side));
  stream.fitted.reset();
}

// Holes of a unit hold no row: a key becomes the row before it in the unit, or the one behind, and so leaves the range
// of its groups to the others; a value, or a key without any other, becomes 0.
void KVCache::Layer::fill_holes(const RowTable& table, Side side, Range unit, float* rows, int64_t d) {
  int other = unit.begin;
  while (other < unit.end && table.position(other) == kNoPosition) ++other;
  for (int r = unit.begin; r < unit.end; ++r) {
    float* row = rows + int64_t{r - unit.begin} * d;
    if (table.position(r) != kNoPosition) {
      other = r;
    } else if (side == Side::value || other == unit.end) {
      std::fill_n(row, d, 0.0f);
    } else {
      std::copy_n(rows + int64_t{other - unit.begin} * d, d, row);
    }
  }
}

// --- taking rows back ----------------------------------------------------------------------------

int KVCache::Layer::trim(int n) {
  if (!trimmable()) return 0;
  forget_call();
  int most = 0;
  for (Sequence& sequence : sequences_) {
    const int removed = std::min(n, sequence.consumed);
    if (removed == 0) continue;
    sequence.consumed -= removed;
    const int rows = sequence.consumed;
    const int sealed = std::min(recipe_.placement->frontier(Side::key, rows), sequence.side(0, Side::key).coded.end());
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (Side side : sides()) trim_side(sequence.side(head, side), side, rows);
    }
    sequence.table(0).truncate(rows);
    empty_pool(sequence, sealed);
    most = std::max(most, removed);
  }
  return most;
}

// All rows are kept, and each is coded by itself.
bool KVCache::Layer::pops_front() const {
  constexpr int kMany = (1 << 30) - 1;
  if (recipe_.retention || recipe_.sink_pool || recipe_.sink_window.window > 0) return false;
  return std::ranges::all_of(sides(), [&](Side side) {
    const int frontier = recipe_.placement->frontier(side, kMany);
    return coded(side).format().unit_rows == 1 && (frontier == 0 || frontier == kMany);
  });
}

void KVCache::Layer::pop_front(int n) {
  if (!pops_front()) {
    throw UnsupportedOperation(
        fmt::format("layer {}: {} can't drop its oldest rows one by one", shape_.layer, method_.def->name));
  }
  forget_call();
  for (Sequence& sequence : sequences_) {
    leave_front(sequence, sequence.front + std::min(n, sequence.table(0).size() - sequence.front));
  }
}

// Pool rows of units that are sealed no longer go back to their places; those of rows that are gone vanish.
void KVCache::Layer::empty_pool(Sequence& sequence, int sealed) {
  RowTable& table = sequence.table(0);
  std::vector<int> gone;
  for (int i = 0; i < sequence.pooled(); ++i) {
    const int row = sequence.pool[static_cast<size_t>(i)] - table.base();
    if (row < sealed) continue;
    gone.push_back(i);
    if (row >= table.size()) continue;
    table.refill(row);
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (Side side : sides()) {
        StreamSide& stream = sequence.side(head, side);
        std::vector<float> x(static_cast<size_t>(dim(side)));
        stream.pool.decode({i, i + 1}, x.data(), dim(side));
        stream.exact.put(row, {x.data(), dim(side), 1, dim(side)});
      }
    }
  }
  for (size_t i = gone.size(); i-- > 0;) sequence.pool.erase(sequence.pool.begin() + gone[i]);
  for (int head = 0; head < shape_.kv_heads; ++head) {
    for (Side side : sides()) sequence.side(head, side).pool.remove(gone);
  }
}

// Frontier and byte counts become those of a cache that was fed `rows` rows: coded rows between the new frontier and
// `rows` are decoded back into the exact tail, on the old grid.
void KVCache::Layer::trim_side(StreamSide& stream, Side side, int rows) const {
  const int frontier = std::min(recipe_.placement->frontier(side, rows), stream.coded.end());
  const int64_t d = dim(side);
  const int thawed = std::min(stream.coded.end(), rows) - frontier;
  if (frontier < stream.coded.end()) {
    const int kept = std::max(0, rows - stream.coded.end());
    std::vector<float> tail(static_cast<size_t>(thawed + kept) * static_cast<size_t>(d));
    stream.coded.decode({frontier, frontier + thawed}, tail.data(), d);
    stream.exact.decode({stream.coded.end(), stream.coded.end() + kept}, tail.data() + thawed * d, d);
    stream.coded.truncate(frontier);
    stream.exact.restart(frontier);
    stream.exact.append({tail.data(), d, thawed + kept, dim(side)});
    unfit(stream, side);
  } else {
    stream.exact.truncate(rows);
  }
}

}  // namespace veloxquant
