// The one place where stored rows change: sealing what a call made ripe, and taking rows back.
//
// A row is rounded to the cache's element type before anything is computed from it, whether it waits in the exact tail
// first (whose codec rounds) or is sealed at once: so the stored bytes do not depend on how the tokens were cut into
// calls.
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "core/check.h"
#include "engine/layer.h"
#include "kernels/kernels.h"

namespace veloxquant {

void KVCache::Layer::commit() {
  shared_.partials = std::vector<float>();  // gives the memory back
  if (!staging_.pending()) return;
  const auto start = std::chrono::steady_clock::now();
  for (int b = 0; b < batch(); ++b) {
    Sequence& sequence = sequences_[static_cast<size_t>(b)];
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (Side side : kSides) commit_side(sequence, head, side, staged_rows(side, b, head));
    }
    sequence.rows += staging_.valid[static_cast<size_t>(b)].size();
  }
  staging_ = {};
  commit_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Rows old.. of the stream are `fresh`. Coded rows end at the new frontier; what was exact below it is sealed with it.
void KVCache::Layer::commit_side(Sequence& sequence, int head, Side side, const RowsView& fresh) {
  if (fresh.rows == 0) return;
  StreamSide& stream = sequence.side(head, side);
  const int old = sequence.rows;
  const int rows = old + fresh.rows;
  const int64_t d = fresh.dim;
  const int frontier = recipe_.placement->frontier(side, rows);
  VQ_CHECK(frontier >= stream.coded.end() && frontier <= rows);
  seal(stream, frontier, fresh, old);
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
void KVCache::Layer::seal(StreamSide& stream, int frontier, const RowsView& fresh, int first_fresh) const {
  constexpr int kRows = 128;
  const int unit = stream.coded.codec().format().unit_rows;
  const int step = std::min(frontier - stream.coded.end(), std::max(1, kRows / unit) * unit);
  const int64_t d = fresh.dim;
  const auto ripe = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(step * d));
  for (int row = stream.coded.end(); row < frontier; row += step) {
    const int count = std::min(step, frontier - row), from_exact = std::clamp(first_fresh - row, 0, count);
    stream.exact.decode({row, row + from_exact}, ripe.get(), d);
    if (from_exact < count) {
      const float* from = fresh.x + (row + from_exact - first_fresh) * d;
      kernels::round_to(from, (count - from_exact) * d, store_, ripe.get() + from_exact * d);
    }
    stream.coded.append({ripe.get(), d, count, fresh.dim});
  }
}

int KVCache::Layer::trim(int n) {
  if (!trimmable()) return 0;
  forget_call();
  int most = 0;
  for (Sequence& sequence : sequences_) {
    const int removed = std::min(n, sequence.rows);
    if (removed == 0) continue;
    sequence.rows -= removed;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (Side side : kSides) trim_side(sequence.side(head, side), side, sequence.rows);
    }
    most = std::max(most, removed);
  }
  return most;
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
  } else {
    stream.exact.truncate(rows);
  }
}

}  // namespace veloxquant
