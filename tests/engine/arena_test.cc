#include "core/arena.h"

#include <gtest/gtest.h>

#include <cstring>

namespace veloxquant {
namespace {

TEST(Arena, counts_what_is_in_use_and_reuses_freed_slices) {
  Arena arena;
  std::byte* a = arena.allocate(100);
  std::byte* b = arena.allocate(64);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % Arena::kAlignment, 0u);
  EXPECT_EQ(arena.stats().allocated_bytes, 128u + 64u);
  arena.release(a, 100);
  EXPECT_EQ(arena.stats().allocated_bytes, 64u);
  EXPECT_EQ(arena.allocate(128), a) << "a freed slice serves the next one of its size";
  EXPECT_EQ(arena.stats().peak_bytes, 192u);
  arena.release(a, 128);
  arena.release(b, 64);
  EXPECT_EQ(arena.stats().allocated_bytes, 0u);
  EXPECT_EQ(arena.stats().reserved_bytes, 0u) << "an empty arena gives everything back";
}

TEST(Arena, grows_without_moving_and_serves_slices_larger_than_a_chunk) {
  Arena arena;
  std::vector<std::byte*> slices;
  for (int i = 0; i < 3000; ++i) {
    slices.push_back(arena.allocate(4096));
    std::memset(slices.back(), i & 0xff, 4096);
  }
  std::byte* large = arena.allocate(size_t{5} << 20);
  std::memset(large, 1, size_t{5} << 20);
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(slices[static_cast<size_t>(i)][4095], std::byte(i & 0xff));
  const ArenaStats stats = arena.stats();
  EXPECT_EQ(stats.allocated_bytes, 3000u * 4096 + (size_t{5} << 20));
  EXPECT_LE(stats.reserved_bytes, stats.allocated_bytes + (size_t{4} << 20));
  for (std::byte* slice : slices) arena.release(slice, 4096);
  arena.release(large, size_t{5} << 20);
}

}  // namespace
}  // namespace veloxquant
