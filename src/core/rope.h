// The frequencies of rotary position embeddings, from the parameters that models and engines state.
#pragma once

#include <optional>
#include <vector>

#include "veloxquant/rope.h"

namespace veloxquant {

struct RopeParameters {
  int rotary_dim = 0;        ///< channels that are rotated
  bool interleaved = false;  ///< as RopeSpec::interleaved
  double base = 0;
  double scale = 1;  ///< of all angles: below 1 for longer contexts
  /// YaRN (arXiv:2309.00071): how much of the angles of fast pairs stays without scale, 0 (none: no YaRN) to 1; which
  /// pairs are fast, in turns within the original context, and whether the boundaries are rounded to whole pairs.
  double yarn = 0;
  double beta_fast = 32, beta_slow = 1;
  double original_context = 0;
  bool whole_pairs = true;
  std::vector<float> factors = {};  ///< divisors of the frequencies of each pair, at least that many; empty: none
};

/// Nothing for parameters that make no sense.
std::optional<RopeSpec> rope_spec(const RopeParameters& parameters);

/// The divisors by which Llama 3.1 stretches slow pairs: those of more than original_context / low positions a turn are
/// divided by `factor`, those of less than original_context / high by 1.
std::vector<float> llama3_factors(int rotary_dim, double base, double factor, double low, double high,
                                  double original_context);

}  // namespace veloxquant
