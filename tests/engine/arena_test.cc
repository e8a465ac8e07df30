#include "core/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

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

TEST(Arena, maps_at_most_as_much_again_or_one_large_page_ahead_of_need) {
  for (const size_t slice : {size_t{4160}, size_t{16} << 10, size_t{100} << 10}) {
    Arena arena;
    std::vector<std::byte*> slices;
    const size_t most = size_t{8} << 20;
    for (size_t used = 0; used < most; used += slice) {
      slices.push_back(arena.allocate(slice));
      const size_t in_use = used + slice, mapped = arena.stats().reserved_bytes;
      const size_t chunks = mapped / Arena::kPage + 6, lost = chunks * slice;  // the rest of each chunk
      ASSERT_LE(mapped, in_use + std::min(in_use, Arena::kPage) + (size_t{64} << 10) + lost) << slice;
    }
    for (std::byte* p : slices) arena.release(p, slice);
  }
  Arena arena;
  std::byte* slice = arena.allocate(size_t{100} << 10);
  EXPECT_EQ(arena.stats().reserved_bytes, size_t{128} << 10);
  arena.release(slice, size_t{100} << 10);
}

bool large_pages_are_on() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string choice;
  std::getline(file, choice);
  return choice.find("[always]") != std::string::npos || choice.find("[madvise]") != std::string::npos;
}

TEST(Arena, counts_what_stands_in_large_pages) {
  const size_t slice = size_t{16} << 10;
  const auto fill = [&](Arena& arena, size_t bytes) {
    std::vector<std::byte*> slices;
    for (size_t used = 0; used < bytes; used += slice) {
      slices.push_back(arena.allocate(slice));
      std::memset(slices.back(), 1, slice);
    }
    return slices;
  };
  Arena small, large, other;
  const auto in_small = fill(small, size_t{1} << 20), in_large = fill(large, size_t{32} << 20),
             in_other = fill(other, size_t{8} << 20);
  EXPECT_EQ(small.stats().large_page_bytes, 0u);
  for (const Arena* arena : {&large, &other}) {
    const ArenaStats stats = arena->stats();
    EXPECT_LE(stats.large_page_bytes, stats.reserved_bytes);
    EXPECT_EQ(stats.large_page_bytes % Arena::kPage, 0u);
    EXPECT_EQ(stats.large_page_bytes > 0, large_pages_are_on());
  }
  for (std::byte* p : in_small) small.release(p, slice);
  for (std::byte* p : in_large) large.release(p, slice);
  for (std::byte* p : in_other) other.release(p, slice);
  EXPECT_EQ(large.stats().large_page_bytes, 0u);
}

}  // namespace
}  // namespace veloxquant
