// Memory in 2 MiB pages where the system gives them: with 4 KiB pages a core reads DRAM at little more than half speed.
#pragma once

#include <cstddef>

namespace veloxquant::bench {

class HugeBuffer {
 public:
  explicit HugeBuffer(size_t bytes);  ///< zeros; throws std::bad_alloc
  ~HugeBuffer();
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

/// Memory that can be taken without swapping, in bytes; 0 when the system does not say.
size_t available_memory();

}  // namespace veloxquant::bench
