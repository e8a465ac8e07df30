#include "core/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <new>
#include <string>

#include "core/check.h"

namespace veloxquant {
namespace {

constexpr size_t kSmallChunk = size_t{64} << 10;

std::byte* map(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(p);
}

// Maps `bytes` at a multiple of `alignment`, so that the system can back them with large pages.
std::byte* map_aligned(size_t bytes, size_t alignment) {
  std::byte* p = map(bytes + alignment);
  const size_t skip = (alignment - reinterpret_cast<uintptr_t>(p) % alignment) % alignment;
  if (skip != 0) munmap(p, skip);
  if (alignment != skip) munmap(p + skip + bytes, alignment - skip);
  return p + skip;
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Arena::~Arena() { unmap_all(); }

std::byte* Arena::allocate(size_t bytes) {
  bytes = slice_bytes(bytes);
  const std::lock_guard lock(mutex_);
  std::byte* slice;
  auto& waiting = free_[bytes];
  if (!waiting.empty()) {
    slice = waiting.back();
    waiting.pop_back();
  } else {
    if (left_ < bytes) add_chunk(bytes);
    slice = next_;
    next_ += bytes;
    left_ -= bytes;
  }
  stats_.allocated_bytes += bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.allocated_bytes);
  return slice;
}

void Arena::release(std::byte* slice, size_t bytes) noexcept {
  bytes = slice_bytes(bytes);
  const std::lock_guard lock(mutex_);
  VQ_CHECK(stats_.allocated_bytes >= bytes);
  stats_.allocated_bytes -= bytes;
  if (stats_.allocated_bytes == 0) {
    unmap_all();
    return;
  }
  free_[bytes].push_back(slice);
}

ArenaStats Arena::stats() const {
  ArenaStats stats;
  std::vector<Chunk> large;
  {
    const std::lock_guard lock(mutex_);
    stats = stats_;
    std::copy_if(chunks_.begin(), chunks_.end(), std::back_inserter(large),
                 [](const Chunk& chunk) { return chunk.large(); });
  }
  if (!large.empty()) stats.large_page_bytes = large_page_bytes(large);
  return stats;
}

// /proc/self/smaps has a head line for each mapping ("7f00-7fff rw-p .."), then lines of numbers ("AnonHugePages: 4
// kB"). The system joins neighbouring mappings: of one that is not the arena's alone, as much counts as may be the
// arena's.
size_t Arena::large_page_bytes(std::span<const Chunk> chunks) {
  std::ifstream smaps("/proc/self/smaps");
  size_t total = 0, ours = 0;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t begin, end;
    size_t kib;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      ours = 0;
      for (const Chunk& chunk : chunks) {
        const auto from = reinterpret_cast<uintptr_t>(chunk.data), to = from + chunk.bytes;
        if (from < end && begin < to) ours += std::min(end, to) - std::max(begin, from);
      }
    } else if (ours > 0 && std::sscanf(line.c_str(), "AnonHugePages: %zu kB", &kib) == 1) {
      total += std::min(kib << 10, ours);
    }
  }
  return total;
}

// The rest of the chunk before is lost to new slices; it is less than one slice of a chunk of many.
void Arena::add_chunk(size_t at_least) {
  // Chunks double what there is until a large page is no more than that.
  size_t bytes = std::max(std::max(stats_.reserved_bytes, kSmallChunk), round_up(at_least, kSmallChunk));
  if (bytes >= kPage) bytes = round_up(at_least, kPage);
  chunks_.reserve(chunks_.size() + 1);
  const Chunk chunk{bytes >= kPage ? map_aligned(bytes, kPage) : map(bytes), bytes};
  if (chunk.large()) madvise(chunk.data, bytes, MADV_HUGEPAGE);
  chunks_.push_back(chunk);
  next_ = chunk.data;
  left_ = bytes;
  stats_.reserved_bytes += bytes;
}

void Arena::unmap_all() noexcept {
  for (const Chunk& chunk : chunks_) munmap(chunk.data, chunk.bytes);
  chunks_.clear();
  free_.clear();
  next_ = nullptr;
  left_ = 0;
  stats_.reserved_bytes = 0;
}

}  // namespace veloxquant
