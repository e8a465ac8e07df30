// The yardstick of this computer: how fast its memory can be read when nothing is computed.
#pragma once

#include <cstdint>

#include "contest.h"
#include "huge_buffer.h"

namespace veloxquant::bench {

/// Adds up 512 MiB of 2 MiB pages, with the widest vectors that the processor has.
class MemoryStream final : public Contestant {
 public:
  MemoryStream() : buffer_(kBytes) {}
  void use_threads(int threads) override { threads_ = threads; }
  void call() override;  ///< one slice for each thread

  static constexpr size_t kBytes = size_t{512} << 20;

 private:
  HugeBuffer buffer_;
  int threads_ = 1;
  volatile uint64_t sum_ = 0;  // somebody wants the sums
};

}  // namespace veloxquant::bench
