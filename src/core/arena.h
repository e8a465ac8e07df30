// The memory of a cache set: slices of a few exact sizes, cut from large pages, given back one by one.
//
// Chunks double what there is from 64 KiB to 2 MiB; from then on every chunk is one 2 MiB page where the system gives
// them, so that no more than a page is mapped ahead of need. A freed slice waits in a list of its size for the next one
// of that size: storage blocks come in a handful of sizes, so nothing is ever moved or merged. When the last slice is
// freed all chunks go back to the system.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "veloxquant/cache_set.h"

namespace veloxquant {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kPage = size_t{2} << 20;  ///< a large page
  static size_t slice_bytes(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// A slice of slice_bytes(bytes), 64-byte aligned, not initialised. Throws std::bad_alloc.
  std::byte* allocate(size_t bytes);
  void release(std::byte* slice, size_t bytes) noexcept;
  /// Asks the system about its pages, which takes a while.
  ArenaStats stats() const;

 private:
  struct Chunk {
    std::byte* data;
    size_t bytes;
    bool large() const { return bytes >= kPage; }  // aligned, and advised to be large pages
  };
  static size_t large_page_bytes(std::span<const Chunk> chunks);
  void add_chunk(size_t at_least);
  void unmap_all() noexcept;

  mutable std::mutex mutex_;
  std::vector<Chunk> chunks_;
  std::byte* next_ = nullptr;  // unused rest of the newest chunk
  size_t left_ = 0;
  std::unordered_map<size_t, std::vector<std::byte*>> free_;
  ArenaStats stats_;
};

}  // namespace veloxquant
