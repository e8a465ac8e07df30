// Before anything is timed: everybody computes the same thing.
#pragma once

#include <string>
#include <vector>

#include "caches.h"

namespace veloxquant::bench {

/// Compares the outputs of all contestants on a small decode and a small prefill with those of ggml over contiguous f16
/// heads. Returns a table of how far off they are; throws std::runtime_error when a codec of known precision is further
/// off than its rounding explains.
std::string check_agreement(const std::vector<Candidate>& candidates);

}  // namespace veloxquant::bench
