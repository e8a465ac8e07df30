#include "hosts/llama/rope_rules.h"

#include "core/rope.h"

namespace veloxquant::llama {

std::optional<RopeSpec> rope_of(const RopeFacts& facts) {
  constexpr int kInterleaved = 0, kHalves = 2;  // modes of ggml
  if (facts.mode != kInterleaved && facts.mode != kHalves) return std::nullopt;
  return rope_spec({.rotary_dim = facts.rotary_dim,
                    .interleaved = facts.mode == kInterleaved,
                    .base = facts.base,
                    .scale = facts.frequency_scale,
                    .yarn = facts.extrapolation,
                    .beta_fast = facts.beta_fast,
                    .beta_slow = facts.beta_slow,
                    .original_context = static_cast<double>(facts.original_context),
                    .factors = facts.factors});
}

}  // namespace veloxquant::llama
