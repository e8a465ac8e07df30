#include "hosts/llama/batch_rules.h"

#include <algorithm>

namespace veloxquant::llama {

std::vector<std::vector<Slice>> plan_calls(std::span<const int> lengths, int limit, bool equal, int sequences) {
  std::vector<std::vector<Slice>> calls;
  std::vector<int> done(lengths.size(), 0);
  const auto most = static_cast<size_t>(sequences);
  for (;;) {
    std::vector<Slice> call;
    int room = limit, shortest = limit;
    for (size_t i = 0; i < lengths.size() && room > 0 && call.size() < most; ++i) {
      const int left = lengths[i] - done[i];
      if (left <= 0) continue;
      const int count = equal ? 1 : std::min(left, room);  // more of equal ones below
      call.push_back({static_cast<int>(i), done[i], count});
      shortest = std::min(shortest, left);
      room -= count;
    }
    if (call.empty()) return calls;
    for (Slice& slice : call) {
      if (equal) slice.count = std::min(shortest, limit / static_cast<int>(call.size()));
      done[static_cast<size_t>(slice.sequence)] += slice.count;
    }
    calls.push_back(std::move(call));
  }
}

}  // namespace veloxquant::llama
