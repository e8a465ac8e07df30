#include "hosts/llama/rope_rules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace veloxquant::llama {
namespace {

constexpr int kInterleaved = 0, kHalves = 2;  // modes of ggml

/// The pair that turns `rotations` times within the original context, a fraction.
double pair_of(double rotations, const RopeFacts& facts) {
  const double n = facts.rotary_dim;
  return n * std::log(facts.original_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(double{facts.base}));
}

}  // namespace

std::optional<RopeSpec> rope_of(const RopeFacts& facts) {
  const auto pairs = static_cast<size_t>(std::max(0, facts.rotary_dim / 2));
  if (facts.mode != kInterleaved && facts.mode != kHalves) return std::nullopt;
  if (pairs == 0 || facts.rotary_dim % 2 != 0 || !(facts.base > 0)) return std::nullopt;
  if (!facts.factors.empty() && facts.factors.size() < pairs) return std::nullopt;
  RopeSpec rope{.rotary_dim = facts.rotary_dim, .interleaved = facts.mode == kInterleaved, .frequencies = {}};
  const bool yarn = facts.extrapolation != 0;
  const double low = yarn ? std::max(0.0, std::floor(pair_of(facts.beta_fast, facts))) : 0;
  const double high = yarn ? std::min(facts.rotary_dim - 1.0, std::ceil(pair_of(facts.beta_slow, facts))) : 0;
  for (size_t i = 0; i < pairs; ++i) {
    const double factor = facts.factors.empty() ? 1.0 : double{facts.factors[i]};
    const double plain = std::pow(double{facts.base}, -2.0 * static_cast<double>(i) / facts.rotary_dim) / factor;
    const double ramp = 1 - std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
    const double mix = yarn ? ramp * facts.extrapolation : 0;
    rope.frequencies.push_back(static_cast<float>(plain * (facts.frequency_scale * (1 - mix) + mix)));
  }
  return rope;
}

}  // namespace veloxquant::llama
