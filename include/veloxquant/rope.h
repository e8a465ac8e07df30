// The rotary position embedding that the host has applied to queries and keys (arXiv:2104.09864).
#pragma once

#include <vector>

namespace veloxquant {

struct RopeSpec {
  int rotary_dim = 0;              ///< channels that are rotated: the first ones
  bool interleaved = false;        ///< pairs are channels (2i, 2i + 1), else (i, i + rotary_dim / 2)
  std::vector<float> frequencies;  ///< angle per position of each pair: rotary_dim / 2 numbers
  bool operator==(const RopeSpec&) const = default;
};

}  // namespace veloxquant
