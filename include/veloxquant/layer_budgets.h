// How a number of rows is shared among the layers of a model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace veloxquant {

/// Whole numbers near `wanted` that sum up to `total`, none below `floor`; where the floor leaves no choice, the floor
/// everywhere. What was sorted stays sorted; of equal fractions the lower index gets the larger number.
std::vector<int> integerise(std::span<const double> wanted, int floor, int64_t total);

/// paper: from bottom to top between 2 b' - b' / beta and b' / beta behind a common window, b' the mean without it;
/// linear: steeper by beta - 1 in both directions from the mean.
enum class PyramidSchedule : uint8_t { paper, linear };

/// PyramidKV (arXiv:2406.02069, section 4.2): budgets of `layers` layers, not increasing, n_sink + 1 or more each,
/// avg_budget in the mean where that leaves a choice. Empty for no layer. Throws QuantizerConfigError for beta < 1 and
/// for budgets below 1 or negative counts.
std::vector<int> pyramid_budgets(int layers, int avg_budget, int n_sink, double beta, int window = 32,
                                 PyramidSchedule schedule = PyramidSchedule::paper);

}  // namespace veloxquant
