// How the tokens of several sequences are cut into calls of limited size.
#pragma once

#include <span>
#include <vector>

namespace veloxquant::llama {

/// Consecutive tokens of one sequence in one call.
struct Slice {
  int sequence = 0, begin = 0, count = 0;
  bool operator==(const Slice&) const = default;
};

/// Calls of at most `limit` tokens of at most `sequences` sequences, each with its slices by rising sequence. `equal`:
/// all slices of a call are equally long, because graphs with recurrent layers take whole rectangles and llama would
/// cut and reorder anything else.
std::vector<std::vector<Slice>> plan_calls(std::span<const int> lengths, int limit, bool equal, int sequences);

}  // namespace veloxquant::llama
