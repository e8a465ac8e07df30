#include "core/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "core/check.h"

namespace veloxquant {
namespace {

constexpr size_t kSmallChunk = size_t{64} << 10;
constexpr size_t kPage = size_t{2} << 20;

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
  const std::lock_guard lock(mutex_);
  return stats_;
}

// The rest of the chunk before is lost to new slices; it is less than one slice of a chunk of many.
void Arena::add_chunk(size_t at_least) {
  size_t bytes = std::clamp(stats_.reserved_bytes, kSmallChunk, kPage);
  if (bytes < at_least || stats_.reserved_bytes >= kPage)
    bytes = std::max(bytes, (at_least + kPage - 1) / kPage * kPage);
  const bool large = bytes % kPage == 0;
  chunks_.reserve(chunks_.size() + 1);
  std::byte* data = large ? map_aligned(bytes, kPage) : map(bytes);
  if (large) madvise(data, bytes, MADV_HUGEPAGE);
  chunks_.push_back({data, bytes});
  next_ = data;
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
