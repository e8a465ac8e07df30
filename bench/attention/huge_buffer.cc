#include "huge_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <string>

namespace veloxquant::bench {
namespace {

constexpr size_t kPage = size_t{2} << 20;

}  // namespace

HugeBuffer::HugeBuffer(size_t bytes)
    : data_(static_cast<std::byte*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage))), bytes_(bytes) {
  if (data_ == nullptr) throw std::bad_alloc();
  madvise(data_, (bytes + kPage - 1) / kPage * kPage, MADV_HUGEPAGE);
  std::memset(data_, 0, bytes);  // pages exist from here on
}

HugeBuffer::~HugeBuffer() { std::free(data_); }

size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    size_t kilobytes = 0;
    if (key == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace veloxquant::bench
