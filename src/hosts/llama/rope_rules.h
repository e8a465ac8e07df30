// The frequencies of a model's rotary position embedding, from the parameters of its ROPE nodes.
#pragma once

#include <optional>
#include <vector>

#include "veloxquant/rope.h"

namespace veloxquant::llama {

/// Parameters of one ROPE node, as ggml stores them.
struct RopeFacts {
  int rotary_dim = 0, mode = 0, original_context = 0;
  float base = 0, frequency_scale = 1, extrapolation = 0, beta_fast = 32, beta_slow = 1;
  std::vector<float> factors;  ///< divisors of the frequencies (LongRoPE, Llama 3), or empty
};

/// Angles per position with the corrections of YaRN (arXiv:2309.00071). Nothing for rotations by more than one position
/// number (images) and for parameters that make no sense.
std::optional<RopeSpec> rope_of(const RopeFacts& facts);

}  // namespace veloxquant::llama
