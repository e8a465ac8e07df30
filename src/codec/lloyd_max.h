// Lloyd-Max scalar quantisers (S. P. Lloyd, "Least squares quantization in PCM", 1982; J. Max, 1960) of the densities
// that rotated rows have. Levels c and boundaries t satisfy
//   t_j = (c_{j-1} + c_j) / 2 and c_j = E[X | t_j < X <= t_{j+1}].
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace veloxquant {

/// A piecewise smooth density on [breaks.front(), breaks.back()]; at inner breaks it may jump or bend, at the ends it
/// may have inverse square roots. It need not be normalised, and it is even.
struct Density {
  std::function<double(double)> pdf;
  std::vector<double> breaks;
  double deviation = 1;  ///< standard deviation, which sets the width of the quadrature's panels
};

/// N(0, 1).
Density normal_density();
/// Coordinate of a uniform point of the sphere of R^dim times sqrt(dim), dim >= 2: unit variance.
Density sphere_density(int dim);
/// Laplace of scale 1 (variance 2), cut at +-cut.
Density laplace_density(double cut);
/// x - c(x) for x of density `base` and the quantiser of these levels and boundaries.
Density residual_density(const Density& base, std::span<const double> levels, std::span<const double> bounds);

/// Integrals of pdf, x pdf and x^2 pdf over one interval.
struct Moments {
  double mass = 0, first = 0, second = 0;
};
Moments moments(const Density& density, double from, double to);
/// The same for each cell of the quantiser with these boundaries.
std::vector<Moments> cell_moments(const Density& density, std::span<const double> bounds);

struct Quantiser {
  std::vector<double> levels;  ///< ascending
  std::vector<double> bounds;  ///< one less: the midpoints
};
/// The fixed point, reached from levels placed by the cube root of the density. Unique for log-concave densities.
Quantiser lloyd_max(const Density& density, int size);
/// The fixed point that Lloyd's sweeps reach from a uniform grid of +-`reach` standard deviations.
Quantiser lloyd_max_from_grid(const Density& density, int size, double reach);

std::vector<double> midpoints(std::span<const double> levels);
/// E (X - c(X))^2 for any levels and boundaries.
double mean_squared_error(const Density& density, std::span<const double> levels, std::span<const double> bounds);

}  // namespace veloxquant
