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

struct CacheStats {
  SideStats key, value;
  int rows = 0;              ///< of the longest sequence
  int nominal_bits = 0;      ///< assigned_bits of the method
  size_t used_bytes = 0;     ///< the method's formula
  size_t nbytes = 0;         ///< from the allocator, block lists included
  size_t staging_bytes = 0;  ///< rows of a call that is not committed yet
};

}  // namespace veloxquant
