// Counting what is there: the formula from row counts, the bytes from the blocks themselves.
#include "engine/layer.h"

namespace veloxquant {

CacheStats KVCache::Layer::stats() const {
  CacheStats stats;
  std::unordered_set<const void*> seen;
  for (const Sequence& sequence : sequences_) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (Side side : sides()) {
        const StreamSide& stream = sequence.side(head, side);
        SideStats& s = side == Side::key ? stats.key : stats.value;
        const int coded_rows = sequence.table(head).holes() > 0 ? stream.coded.held_rows() : stream.coded.rows();
        const int exact_rows = stream.exact.rows() + stream.pool.rows();
        s.coded_rows += coded_rows;
        s.exact_rows += exact_rows;
        s.coded_bytes += coded(side).bytes(coded_rows);
        s.exact_bytes += exact(side).bytes(exact_rows);
        s.fp16_bytes += static_cast<size_t>(sequence.consumed) * static_cast<size_t>(dim(side)) * 2;
        stats.pool_bytes += exact(side).bytes(stream.pool.rows());
        stream.pool.count_bytes(seen, stats.nbytes);
        stream.coded.count_bytes(seen, stats.nbytes);
        stream.exact.count_bytes(seen, stats.nbytes);
      }
      stats.rows = std::max(stats.rows, sequence.live(head));
      stats.rows_kept += sequence.live(head);
      stats.tokens_seen += sequence.consumed;
    }
    for (const RowTable& table : sequence.tables) {
      stats.table_bytes += table.used_bytes();
      stats.nbytes += table.nbytes();
    }
    // The first rows of a sequence stand where their order says.
    if (recipe_.sink_pool) stats.pool_position_bytes += sequence.pool.size() * sizeof(int32_t);
    stats.nbytes += (sequence.pool.capacity() + sequence.wanted.capacity()) * sizeof(int32_t);
  }
  stats.table_bytes += stats.pool_position_bytes;
  if (batch() > 0) stats.rows_first = sequences_[0].live(0);
  stats.kv_bytes_per_row = 2 * static_cast<size_t>(shape_.dim_k + (sides().size() > 1 ? shape_.dim_v : 0));
  const Options& coding = method_.coding ? method_.coding->options : method_.options;
  for (const OptionSpec& option : coding.specs()) {
    if (option.name == "bit_width_inlier") stats.nominal_bits = coding.integer(option.name);
  }
  stats.calls = counts_;
  stats.calls.late_attend = shared_.late.load(std::memory_order_relaxed);
  stats.used_bytes = stats.key.bytes() + stats.value.bytes() + stats.table_bytes;
  stats.staging_bytes = staging_.bytes() + (shared_.partials.size() + shared_.masses.size()) * sizeof(float);
  return stats;
}

}  // namespace veloxquant
