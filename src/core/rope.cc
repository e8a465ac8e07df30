#include "core/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace veloxquant {
namespace {

double plain_frequency(size_t pair, int rotary_dim, double base) {
  return std::pow(base, -2.0 * static_cast<double>(pair) / rotary_dim);
}

/// The pair that turns `rotations` times within the original context, a fraction.
double pair_of(double rotations, const RopeParameters& p) {
  return p.rotary_dim * std::log(p.original_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(p.base));
}

}  // namespace

std::optional<RopeSpec> rope_spec(const RopeParameters& p) {
  const auto pairs = static_cast<size_t>(std::max(0, p.rotary_dim / 2));
  if (pairs == 0 || p.rotary_dim % 2 != 0 || !(p.base > 0)) return std::nullopt;
  if (!p.factors.empty() && p.factors.size() < pairs) return std::nullopt;
  RopeSpec rope{.rotary_dim = p.rotary_dim, .interleaved = p.interleaved, .frequencies = {}};
  const bool yarn = p.yarn != 0;
  double low = yarn ? pair_of(p.beta_fast, p) : 0, high = yarn ? pair_of(p.beta_slow, p) : 0;
  if (p.whole_pairs) low = std::floor(low), high = std::ceil(high);
  low = std::max(0.0, low);
  high = std::min(p.rotary_dim - 1.0, high);
  for (size_t i = 0; i < pairs; ++i) {
    const double factor = p.factors.empty() ? 1.0 : double{p.factors[i]};
    const double ramp = 1 - std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
    const double mix = yarn ? ramp * p.yarn : 0;
    const double frequency = plain_frequency(i, p.rotary_dim, p.base) / factor * (p.scale * (1 - mix) + mix);
    rope.frequencies.push_back(static_cast<float>(frequency));
    if (!std::isfinite(rope.frequencies.back())) return std::nullopt;
  }
  return rope;
}

std::vector<float> llama3_factors(int rotary_dim, double base, double factor, double low, double high,
                                  double original_context) {
  std::vector<float> factors;
  for (size_t i = 0; i < static_cast<size_t>(std::max(0, rotary_dim / 2)); ++i) {
    const double turns = original_context * plain_frequency(i, rotary_dim, base) / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - kept) / factor + kept)));
  }
  return factors;
}

}  // namespace veloxquant
