#include "codec/lloyd_max.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace veloxquant {
namespace {

constexpr int kNodes = 24;              // of a panel: exact to degree 47
constexpr double kPanelDeviations = 1;  // widest panel, in standard deviations
constexpr double kNormalReach = 9.5;    // beyond it N(0, 1) has a mass of 2e-21

struct Rule {
  std::array<double, kNodes> at{}, weight{};
};

/// Gauss-Legendre on [0, 1] with the substitution s -> s^2 (3 - 2 s), whose derivative vanishes at both ends and so
/// takes away inverse square roots there.
Rule make_rule() {
  Rule rule;
  for (int i = 0; i < kNodes; ++i) {
    double x = std::cos(std::numbers::pi * (i + 0.75) / (kNodes + 0.5)), slope = 0;
    for (int step = 0; step < 20; ++step) {
      double p = 1, previous = 0;
      for (int k = 1; k <= kNodes; ++k) {
        const double next = ((2 * k - 1) * x * p - (k - 1) * previous) / k;
        previous = p;
        p = next;
      }
      slope = kNodes * (x * p - previous) / (x * x - 1);
      x -= p / slope;
    }
    const double s = (1 - x) / 2;
    const size_t k = static_cast<size_t>(i);
    rule.at[k] = s * s * (3 - 2 * s);
    rule.weight[k] = 6 * s * (1 - s) / ((1 - x * x) * slope * slope);
  }
  return rule;
}

void add_panel(const Density& density, double from, double to, Moments* sum) {
  static const Rule rule = make_rule();
  for (size_t k = 0; k < kNodes; ++k) {
    const double x = from + (to - from) * rule.at[k];
    const double mass = density.pdf(x) * rule.weight[k] * (to - from);
    sum->mass += mass;
    sum->first += mass * x;
    sum->second += mass * x * x;
  }
}

/// Levels at the quantiles (l + 1/2) / size of the cube root of the density: the optimum of many levels (Panter, Dite).
std::vector<double> starting_levels(const Density& density, int size) {
  constexpr int kSteps = 4096;
  const double low = density.breaks.front(), width = (density.breaks.back() - low) / kSteps;
  std::vector<double> sum(1, 0.0);
  for (int k = 0; k < kSteps; ++k) sum.push_back(sum.back() + std::cbrt(density.pdf(low + (k + 0.5) * width)));
  std::vector<double> levels;
  for (int l = 0; l < size; ++l) {
    const double target = sum.back() * (l + 0.5) / size;
    const auto above = std::upper_bound(sum.begin(), sum.end() - 1, target);
    const double part = (target - above[-1]) / (above[0] - above[-1]);
    levels.push_back(low + width * (static_cast<double>(above - sum.begin()) - 1 + part));
  }
  return levels;
}

/// One step of Newton's method on c_j - E[X | cell j] = 0. A boundary's move changes a mean by pdf (t - mean) / mass,
/// so the matrix is tridiagonal.
std::vector<double> newton_step(const Density& density, const std::vector<double>& c) {
  const std::vector<double> t = midpoints(c);
  const std::vector<Moments> cells = cell_moments(density, t);
  const size_t n = c.size();
  std::vector<double> upper(n), right(n);  // of the system after elimination, row by row
  for (size_t j = 0; j < n; ++j) {
    const double mean = cells[j].first / cells[j].mass;
    const double from_left = j == 0 ? 0 : density.pdf(t[j - 1]) * (mean - t[j - 1]) / cells[j].mass / 2;
    const double from_right = j + 1 == n ? 0 : density.pdf(t[j]) * (t[j] - mean) / cells[j].mass / 2;
    const double diagonal = 1 - from_left - from_right + (j == 0 ? 0 : from_left * upper[j - 1]);
    upper[j] = -from_right / diagonal;
    right[j] = (mean - c[j] + (j == 0 ? 0 : from_left * right[j - 1])) / diagonal;
  }
  for (size_t j = n - 1; j-- > 0;) right[j] -= upper[j] * right[j + 1];
  for (size_t j = 0; j < n; ++j) right[j] += c[j];
  return right;
}

std::vector<double> lloyd_step(const Density& density, const std::vector<double>& c) {
  const std::vector<Moments> cells = cell_moments(density, midpoints(c));
  std::vector<double> next = c;  // an empty cell keeps its level
  for (size_t j = 0; j < c.size(); ++j) {
    if (cells[j].mass > 0) next[j] = cells[j].first / cells[j].mass;
  }
  return next;
}

double largest_move(const std::vector<double>& a, const std::vector<double>& b) {
  double move = 0;
  for (size_t j = 0; j < a.size(); ++j) move = std::max(move, std::fabs(a[j] - b[j]));
  return move;
}

bool is_quantiser(const Density& density, const std::vector<double>& c) {
  const bool inside = c.front() > density.breaks.front() && c.back() < density.breaks.back();  // false for NaN
  const auto descent = std::adjacent_find(c.begin(), c.end(), [](double a, double b) { return !(a < b); });
  return inside && descent == c.end();
}

/// All densities here are even: what quadrature leaves of asymmetry is taken out.
Quantiser symmetric(const std::vector<double>& c) {
  std::vector<double> levels = c;
  for (size_t j = 0; j < c.size(); ++j) levels[j] = (c[j] - c[c.size() - 1 - j]) / 2;
  return {levels, midpoints(levels)};
}

Quantiser solve(const Density& density, std::vector<double> c) {
  constexpr int kMostSteps = 200;
  const double tolerance = 1e-12 * density.deviation;
  for (int step = 0; step < kMostSteps; ++step) {
    std::vector<double> next = newton_step(density, c);
    if (!is_quantiser(density, next)) next = lloyd_step(density, c);
    const double move = largest_move(next, c);
    c = std::move(next);
    if (move < tolerance) break;
  }
  return symmetric(c);
}

}  // namespace

Density normal_density() {
  return {[](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); },
          {-kNormalReach, kNormalReach},
          1};
}

Density sphere_density(int dim) {
  const double d = dim, end = std::sqrt(d);
  const double log_factor = std::lgamma(d / 2) - std::lgamma((d - 1) / 2) - std::log(std::numbers::pi * d) / 2;
  return {[=](double x) {
            const double inside = (end - x) * (end + x) / d;
            return inside > 0 ? std::exp(log_factor + (d - 3) / 2 * std::log(inside)) : 0.0;
          },
          {-end, end},
          1};
}

Density laplace_density(double cut) {
  return {[](double x) { return std::exp(-std::fabs(x)) / 2; }, {-cut, 0, cut}, std::numbers::sqrt2};
}

Density residual_density(const Density& base, std::span<const double> levels, std::span<const double> bounds) {
  struct Piece {
    double level, from, to;  // of the residual
  };
  std::vector<Piece> pieces;
  std::vector<double> breaks;
  for (size_t j = 0; j < levels.size(); ++j) {
    const double from = j == 0 ? base.breaks.front() : bounds[j - 1];
    const double to = j + 1 == levels.size() ? base.breaks.back() : bounds[j];
    pieces.push_back({levels[j], from - levels[j], to - levels[j]});
    breaks.push_back(from - levels[j]);
    breaks.push_back(to - levels[j]);
  }
  std::sort(breaks.begin(), breaks.end());
  breaks.erase(std::unique(breaks.begin(), breaks.end()), breaks.end());
  const double deviation = std::sqrt(mean_squared_error(base, levels, bounds));
  return {[pdf = base.pdf, pieces](double r) {
            double sum = 0;
            for (const Piece& piece : pieces) {
              if (piece.from < r && r <= piece.to) sum += pdf(piece.level + r);
            }
            return sum;
          },
          breaks, deviation};
}

Moments moments(const Density& density, double from, double to) {
  Moments sum;
  const double widest = kPanelDeviations * density.deviation;
  for (size_t k = 0; k + 1 < density.breaks.size(); ++k) {
    const double low = std::max(from, density.breaks[k]), high = std::min(to, density.breaks[k + 1]);
    if (!(low < high)) continue;
    const int panels = static_cast<int>(std::ceil((high - low) / widest));
    for (int p = 0; p < panels; ++p) {
      add_panel(density, low + (high - low) * p / panels, low + (high - low) * (p + 1) / panels, &sum);
    }
  }
  return sum;
}

std::vector<Moments> cell_moments(const Density& density, std::span<const double> bounds) {
  std::vector<Moments> cells;
  for (size_t j = 0; j <= bounds.size(); ++j) {
    cells.push_back(moments(density, j == 0 ? density.breaks.front() : bounds[j - 1],
                            j == bounds.size() ? density.breaks.back() : bounds[j]));
  }
  return cells;
}

Quantiser lloyd_max(const Density& density, int size) { return solve(density, starting_levels(density, size)); }

Quantiser lloyd_max_from_grid(const Density& density, int size, double reach) {
  std::vector<double> c;
  for (int l = 0; l < size; ++l) c.push_back(reach * density.deviation * (2.0 * l + 1 - size) / size);
  constexpr int kMostSweeps = 5000;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {  // into the basin; Newton's method then finishes
    std::vector<double> next = lloyd_step(density, c);
    const double move = largest_move(next, c);
    c = std::move(next);
    if (move < 1e-6 * density.deviation) break;
  }
  return solve(density, c);
}

std::vector<double> midpoints(std::span<const double> levels) {
  std::vector<double> bounds;
  for (size_t j = 0; j + 1 < levels.size(); ++j) bounds.push_back((levels[j] + levels[j + 1]) / 2);
  return bounds;
}

double mean_squared_error(const Density& density, std::span<const double> levels, std::span<const double> bounds) {
  const std::vector<Moments> cells = cell_moments(density, bounds);
  double error = 0, mass = 0;
  for (size_t j = 0; j < levels.size(); ++j) {
    error += cells[j].second - 2 * levels[j] * cells[j].first + levels[j] * levels[j] * cells[j].mass;
    mass += cells[j].mass;
  }
  return error / mass;
}

}  // namespace veloxquant
