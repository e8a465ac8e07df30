// Counting what is there: the formula from row counts, the bytes from the blocks themselves.
#include "engine/layer.h"

namespace veloxquant {

CacheStats KVCache::Layer::stats() const {
  CacheStats stats;
  std::unordered_set<const void*> seen;
  for (const Sequence& sequence : sequences_) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (Side side : kSides) {
        const StreamSide& stream = sequence.side(head, side);
        SideStats& s = side == Side::key ? stats.key : stats.value;
        s.coded_rows += stream.coded.rows();
        s.exact_rows += stream.exact.rows();
        s.coded_bytes += coded(side).bytes(stream.coded.rows());
        s.exact_bytes += exact(side).bytes(stream.exact.rows());
        s.fp16_bytes += static_cast<size_t>(sequence.rows) * static_cast<size_t>(dim(side)) * 2;
        stream.coded.count_bytes(seen, stats.nbytes);
        stream.exact.count_bytes(seen, stats.nbytes);
      }
    }
    stats.rows = std::max(stats.rows, sequence.rows);
  }
  for (const OptionSpec& option : method_.options.specs()) {
    if (option.name == "bit_width_inlier") stats.nominal_bits = method_.options.integer(option.name);
  }
  stats.used_bytes = stats.key.bytes() + stats.value.bytes();
  stats.staging_bytes = staging_.bytes() + shared_.partials.size() * sizeof(float);
  return stats;
}

}  // namespace veloxquant
