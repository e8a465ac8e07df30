#include "codec/scalar_table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "codec/lloyd_max.h"

namespace veloxquant {
namespace {

constexpr int kSphereBelow = 64;        // from here on N(0, 1) costs under 0.3 % at up to 4 bits
constexpr int kIntegerFromDim = 32;     // smaller rows use fp32 levels
constexpr int kIntegerBits = 4;         // wider indices use fp32 levels
constexpr double kResidualReach = 2.2;  // starting grid of the residual's table, in standard deviations
constexpr double kLaplaceCut = 8;       // in scales: the reference integrates no further

/// Levels as integers times a unit, or exact when `integer` is empty.
struct Rounded {
  std::vector<double> levels;
  std::vector<int> integer;
  double unit = 0;
};

std::vector<int> rounded_multiples(const std::vector<double>& levels, double unit) {
  std::vector<int> integer;
  for (double level : levels) integer.push_back(static_cast<int>(std::lround(level / unit)));
  return integer;
}

/// The unit of least squared error for these integers, their cells being those of the midpoints.
double fitted_unit(const Density& density, const std::vector<int>& integer, double unit) {
  constexpr int kSweeps = 20;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    std::vector<double> levels;
    for (int n : integer) levels.push_back(unit * n);
    const std::vector<Moments> cells = cell_moments(density, midpoints(levels));
    double above = 0, below = 0;
    for (size_t j = 0; j < cells.size(); ++j) {
      above += integer[j] * cells[j].first;
      below += integer[j] * integer[j] * cells[j].mass;
    }
    unit = above / below;
  }
  return unit;
}

/// The integers of least error: the outer level is 1 at 1 bit, 10 at 2 bits (3:10 is within 0.1 % of the optimum and
/// leaves room for a second stage) and whichever of 64..127 rounds best above.
Rounded integer_levels(const Density& density, const Quantiser& optimum, int bits) {
  const std::vector<Moments> cells = cell_moments(density, optimum.bounds);
  const int least = bits == 1 ? 1 : bits == 2 ? 10 : 64, most = bits <= 2 ? least : 127;
  Rounded best;
  double best_error = INFINITY;
  for (int top = least; top <= most; ++top) {
    const double unit = optimum.levels.back() / top;
    const std::vector<int> integer = rounded_multiples(optimum.levels, unit);
    double error = 0;  // to first order the boundaries do not matter
    for (size_t j = 0; j < cells.size(); ++j) {
      error += cells[j].mass * std::pow(optimum.levels[j] - unit * integer[j], 2);
    }
    if (error >= best_error) continue;
    best_error = error;
    best.integer = integer;
    best.unit = unit;
  }
  best.unit = static_cast<float>(fitted_unit(density, best.integer, best.unit));
  for (int n : best.integer) best.levels.push_back(best.unit * n);
  return best;
}

/// A row of one channel is its sign times its norm, so the outer levels are the source and the others never occur.
Quantiser sign_quantiser(int size) {
  Quantiser q;
  for (int l = 0; l < size; ++l) q.levels.push_back((2.0 * l + 1 - size) / (size - 1));
  q.bounds = midpoints(q.levels);
  return q;
}

Density source_density(int dim) {
  if (dim >= kSphereBelow) return normal_density();
  return sphere_density(std::max(dim, 2));
}

Rounded source_levels(int dim, int bits) {
  if (dim == 1) return {sign_quantiser(1 << bits).levels, {}, 0};
  const Density density = source_density(dim);
  const Quantiser optimum = lloyd_max(density, 1 << bits);
  if (dim >= kIntegerFromDim && bits <= kIntegerBits) return integer_levels(density, optimum, bits);
  return {optimum.levels, {}, 0};
}

std::vector<float> to_floats(const std::vector<double>& x) { return {x.begin(), x.end()}; }

ScalarTable to_table(const Rounded& rounded) {
  ScalarTable table;
  table.unit = static_cast<float>(rounded.unit);
  for (int n : rounded.integer) {
    table.integer.push_back(static_cast<int8_t>(n));
    table.levels.push_back(table.unit * static_cast<float>(n));
  }
  if (rounded.integer.empty()) table.levels = to_floats(rounded.levels);
  return table;
}

LloydTables one_index(int dim, int bits) {
  const Rounded rounded = source_levels(dim, bits);
  LloydTables tables;
  tables.table = to_table(rounded);
  tables.bounds = to_floats(midpoints(rounded.levels));
  return tables;
}

std::vector<double> second_stage_levels(int dim, int bits, Stage2 stage2, double laplace_scale, const Rounded& first) {
  if (stage2 == Stage2::matched && dim > 1) {
    const Density residual = residual_density(source_density(dim), first.levels, midpoints(first.levels));
    return lloyd_max_from_grid(residual, 1 << bits, kResidualReach).levels;
  }
  std::vector<double> levels = stage2 == Stage2::laplace ? lloyd_max(laplace_density(kLaplaceCut), 1 << bits).levels
                                                         : sign_quantiser(1 << bits).levels;
  // A row of one channel leaves a residual of up to 2^-11, what rounding its norm to fp16 costs.
  const double scale = stage2 == Stage2::laplace ? laplace_scale : 0x1p-11;
  for (double& level : levels) level *= scale;
  return levels;
}

/// Both stages as integers of one unit, the finest that keeps their sums in an int8.
void to_common_integers(Rounded* first, Rounded* second) {
  const double top1 = first->integer.back(), top2 = second->levels.back() / first->unit;
  const int multiple = static_cast<int>((127 - 0.5) / (top1 + top2));
  const double unit = static_cast<float>(first->unit / multiple);
  for (int& n : first->integer) n *= multiple;
  second->integer = rounded_multiples(second->levels, unit);
  first->unit = second->unit = unit;
  for (size_t j = 0; j < second->levels.size(); ++j) {
    first->levels[j] = unit * first->integer[j];
    second->levels[j] = unit * second->integer[j];
  }
}

LloydTables two_stages(int dim, int bits, Stage2 stage2, double laplace_scale) {
  Rounded first = source_levels(dim, bits);
  LloydTables tables;
  tables.bounds = to_floats(midpoints(first.levels));  // those of one stage, so that the high codes equal its codes
  Rounded second{second_stage_levels(dim, bits, stage2, laplace_scale, first), {}, 0};
  // The Laplace stage is there for comparison, and rounding its narrow levels would change it by some per cent.
  const bool integers = stage2 == Stage2::matched && !first.integer.empty() && 2 * bits <= kIntegerBits;
  if (integers) to_common_integers(&first, &second);
  tables.first = to_floats(first.levels);
  tables.second = to_floats(midpoints(second.levels));
  Rounded sum{{}, {}, integers ? first.unit : 0};
  for (size_t i = 0; i < first.levels.size(); ++i) {
    for (size_t j = 0; j < second.levels.size(); ++j) {
      sum.levels.push_back(first.levels[i] + second.levels[j]);
      if (integers) sum.integer.push_back(first.integer[i] + second.integer[j]);
    }
  }
  tables.table = to_table(sum);
  return tables;
}

}  // namespace

std::shared_ptr<const LloydTables> lloyd_tables(int dim, int bits, Stage2 stage2, double laplace_scale) {
  using Key = std::tuple<int, int, Stage2, double>;
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const LloydTables>> built;
  const bool one = stage2 == Stage2::none || stage2 == Stage2::joint;
  const Key key{std::min(dim, kSphereBelow), stage2 == Stage2::joint ? 2 * bits : bits, one ? Stage2::none : stage2,
                stage2 == Stage2::laplace ? laplace_scale : 0};
  const std::lock_guard lock(mutex);
  std::shared_ptr<const LloydTables>& tables = built[key];
  if (!tables) {
    tables = std::make_shared<const LloydTables>(one ? one_index(dim, std::get<1>(key))
                                                     : two_stages(dim, bits, stage2, laplace_scale));
  }
  return tables;
}

}  // namespace veloxquant
