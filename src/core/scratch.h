// Working memory of one thread inside attend: grown to the largest call seen, kept between calls, so that a steady
// decode loop allocates nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace veloxquant {

class Scratch {
 public:
  /// At least `count` floats, 64-byte aligned, not initialised; valid until the next call on this thread.
  static float* floats(size_t count) {
    thread_local Scratch scratch;
    if (scratch.count_ < count) {
      scratch.data_.reset(static_cast<float*>(::operator new(count * sizeof(float), kAlignment)));
      scratch.count_ = count;
    }
    return scratch.data_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(float* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<float, Free> data_;
  size_t count_ = 0;
};

}  // namespace veloxquant
