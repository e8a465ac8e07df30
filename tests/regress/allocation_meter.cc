#include "allocation_meter.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace veloxquant::test {
namespace {

std::atomic<size_t> live{0}, total{0}, peak{0};

void* counted(void* p) {
  if (!p) throw std::bad_alloc();
  const size_t bytes = malloc_usable_size(p);
  total.fetch_add(bytes, std::memory_order_relaxed);
  const size_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  size_t most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
  return p;
}

void release(void* p) noexcept {
  if (!p) return;
  live.fetch_sub(malloc_usable_size(p), std::memory_order_relaxed);
  std::free(p);
}

}  // namespace

size_t AllocationMeter::live_bytes() { return live.load(std::memory_order_relaxed); }
size_t AllocationMeter::total_bytes() { return total.load(std::memory_order_relaxed); }
size_t AllocationMeter::peak_bytes() { return peak.load(std::memory_order_relaxed); }
void AllocationMeter::restart_peak() { peak.store(live.load(std::memory_order_relaxed), std::memory_order_relaxed); }

}  // namespace veloxquant::test

// The array and nothrow forms of the standard library call these.
void* operator new(size_t bytes) { return veloxquant::test::counted(std::malloc(bytes == 0 ? 1 : bytes)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  const size_t multiple = static_cast<size_t>(alignment);
  return veloxquant::test::counted(std::aligned_alloc(multiple, (bytes + multiple - 1) / multiple * multiple));
}
void operator delete(void* p) noexcept { veloxquant::test::release(p); }
void operator delete(void* p, size_t) noexcept { veloxquant::test::release(p); }
void operator delete(void* p, std::align_val_t) noexcept { veloxquant::test::release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { veloxquant::test::release(p); }
