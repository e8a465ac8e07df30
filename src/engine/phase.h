// What a call is, from its hint and its size.
#pragma once

#include "veloxquant/types.h"

namespace veloxquant {

/// `automatic` with several tokens is a prefill chunk that ends here; with one token a decode step. An explicit hint
/// always wins: a one-token prompt is a prefill.
constexpr Phase resolve(Phase hint, int tokens) {
  if (hint != Phase::automatic) return hint;
  return tokens == 1 ? Phase::decode : Phase::prefill_last;
}

}  // namespace veloxquant
