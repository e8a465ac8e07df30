// Working memory of encoders: grown to the largest call of the thread and kept, so that a steady decode loop allocates
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace veloxquant {

inline constexpr int kEncodedRows = 64;  ///< rows that are encoded at a time: their codes stay in the nearest cache

/// At least `count` elements, 64-byte aligned, not initialised; one buffer a type and thread, valid until the next
/// call.
template <class T>
T* encode_scratch(size_t count) {
  constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* p) const { ::operator delete(p, kAlignment); }
  };
  thread_local std::unique_ptr<T, Free> buffer;
  thread_local size_t size = 0;
  if (size < count) {
    buffer.reset(static_cast<T*>(::operator new(count * sizeof(T), kAlignment)));
    size = count;
  }
  return buffer.get();
}

}  // namespace veloxquant
