// Room for the codes of one encode call, a byte each: grown to the largest call of the thread and kept, so that a
// steady decode loop allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace veloxquant {

inline constexpr int kEncodedRows = 64;  ///< rows that are encoded at a time: their codes stay in the nearest cache

/// Valid until the next call on this thread.
inline uint8_t* code_scratch(size_t count) {
  thread_local std::vector<uint8_t> codes;
  if (codes.size() < count) codes.resize(count);
  return codes.data();
}

}  // namespace veloxquant
