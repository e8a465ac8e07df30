// Statistics of a cache as it stands; reading them settles nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace veloxquant {

struct SideStats {
  int64_t coded_rows = 0;  ///< summed over sequences and heads
  int64_t exact_rows = 0;  ///< waiting in their exact form
  size_t coded_bytes = 0;  ///< by the codec's formula
  size_t exact_bytes = 0;
  size_t fp16_bytes = 0;  ///< what an fp16 cache would need for these rows
  size_t bytes() const { return coded_bytes + exact_bytes; }
};

/// How calls reached a method that scores rows.
struct CallCounts {
  int64_t true_query = 0;   ///< commits whose scores come from queries
  int64_t key_proxy = 0;    ///< commits that had to take keys for queries
  int64_t late_attend = 0;  ///< attends after the commit of their call, which saw the survivors
};

struct CacheStats {
  SideStats key, value;
  CallCounts calls;
  int rows = 0;                    ///< of the longest stream
  int rows_first = 0;              ///< of batch row 0, kv head 0
  int64_t rows_kept = 0;           ///< summed over streams
  int64_t tokens_seen = 0;         ///< likewise
  size_t kv_bytes_per_row = 0;     ///< of key and value in an fp16 cache
  size_t table_bytes = 0;          ///< positions and scores of rows, where they are stored
  size_t pool_bytes = 0;           ///< of exact rows that stand apart; counted above as well
  size_t pool_position_bytes = 0;  ///< likewise
  int nominal_bits = 0;            ///< assigned_bits of the method
  size_t used_bytes = 0;           ///< the method's formula
  size_t nbytes = 0;               ///< from the allocator, block lists included
  size_t staging_bytes = 0;        ///< rows and scores of a call that is not committed yet
};

}  // namespace veloxquant
