#include "codec/lloyd_max.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "codec/scalar_table.h"

namespace veloxquant {
namespace {

void expect_table(const Density& density, const Quantiser& q, double unit, double mse, double mse_tolerance,
                  const std::vector<double>& upper, double tolerance = 1.01e-6) {
  EXPECT_NEAR(mean_squared_error(density, q.levels, q.bounds) * unit * unit, mse, mse_tolerance);
  ASSERT_EQ(q.bounds.size() + 1, q.levels.size());
  const size_t half = q.levels.size() / 2;
  for (size_t j = 0; j < upper.size(); ++j) {
    EXPECT_NEAR(q.levels[half + j] * unit, upper[j], tolerance);
    EXPECT_EQ(q.levels[half + j], -q.levels[half - 1 - j]);
  }
}

TEST(LloydMax, normal_table) {
  const Density normal = normal_density();
  const std::vector<std::vector<double>> levels = {
      {0.797885},
      {0.452780, 1.510418},
      {0.245094, 0.756005, 1.343909, 2.151946},
      {0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590}};
  const double mse[] = {0.363380, 0.117482, 0.034548, 0.009501, 0.0025047, 0.00064424, 0.00016348, 0.00004119};
  const double tolerance[] = {1e-6, 1e-6, 1e-6, 1e-6, 1e-7, 1e-8, 1e-8, 1e-8};
  for (size_t b = 0; b < 8; ++b) {
    expect_table(normal, lloyd_max(normal, 2 << b), 1, mse[b], tolerance[b],
                 b < levels.size() ? levels[b] : std::vector<double>{});
  }
}

struct SphereRow {
  int dim;
  double mse[4];
  std::vector<double> levels[4];
};

TEST(LloydMax, sphere_table) {
  const SphereRow rows[] = {{4,
                             {0.279494, 0.074523, 0.019297, 0.004914},
                             {{0.848826},
                              {0.438892, 1.348834},
                              {0.223414, 0.674079, 1.138189, 1.635705},
                              {0.112752, 0.338739, 0.566224, 0.796403, 1.030857, 1.271963, 1.524001, 1.797483}}},
                            {8,
                             {0.322430, 0.094771, 0.026063, 0.006870},
                             {{0.823146},
                              {0.446671, 1.427860},
                              {0.234220, 0.713828, 1.233660, 1.860308},
                              {0.120233, 0.362162, 0.608681, 0.863586, 1.132138, 1.422761, 1.751780, 2.163280}}},
                            {16,
                             {0.343185, 0.105847, 0.030084, 0.008094},
                             {{0.810441},
                              {0.449957, 1.468826},
                              {0.239689, 0.734716, 1.286970, 1.996795},
                              {0.124254, 0.374865, 0.632103, 0.901558, 1.191191, 1.514183, 1.897122, 2.415579}}},
                            {32,
                             {0.353357, 0.111600, 0.032261, 0.008774},
                             {{0.804141},
                              {0.451428, 1.489560},
                              {0.242405, 0.745325, 1.314996, 2.071926},
                              {0.126314, 0.381409, 0.644293, 0.921612, 1.222955, 1.564484, 1.979472, 2.564977}}},
                            {64,
                             {0.358387, 0.114526, 0.033391, 0.009132},
                             {{0.801007},
                              {0.452119, 1.499975},
                              {0.243753, 0.750658, 1.329343, 2.111311},
                              {0.127352, 0.384718, 0.650494, 0.931894, 1.239404, 1.590849, 2.023310, 2.646370}}},
                            {80,
                             {0.359389, 0.115115, 0.033620, 0.009204},
                             {{0.800382},
                              {0.452254, 1.502061},
                              {0.244022, 0.751727, 1.332239, 2.119338},
                              {0.127560, 0.385383, 0.651742, 0.933970, 1.242739, 1.596221, 2.032299, 2.663219}}},
                            {96,
                             {0.360056, 0.115508, 0.033773, 0.009253},
                             {{0.799965},
                              {0.452343, 1.503453},
                              {0.244201, 0.752439, 1.334174, 2.124716},
                              {0.127699, 0.385826, 0.652576, 0.935358, 1.244971, 1.599822, 2.038334, 2.674560}}},
                            {128,
                             {0.360889, 0.116000, 0.033966, 0.009315},
                             {{0.799444},
                              {0.452453, 1.505193},
                              {0.244425, 0.753330, 1.336599, 2.131471},
                              {0.127873, 0.386381, 0.653619, 0.937097, 1.247770, 1.604343, 2.045925, 2.688859}}},
                            {256,
                             {0.362136, 0.116740, 0.034256, 0.009408},
                             {{0.798664},
                              {0.452618, 1.507805},
                              {0.244760, 0.754667, 1.340247, 2.141669},
                              {0.128134, 0.387214, 0.655187, 0.939714, 1.251989, 1.611168, 2.057411, 2.710567}}}};
  for (const SphereRow& row : rows) {
    const Density density = sphere_density(row.dim);
    for (size_t b = 0; b < 4; ++b) {
      SCOPED_TRACE(row.dim);
      expect_table(density, lloyd_max(density, 2 << b), 1, row.mse[b], 1e-6, row.levels[b]);
    }
  }
}

TEST(LloydMax, small_spheres_have_closed_forms) {
  const Quantiser circle = lloyd_max(sphere_density(2), 2);
  EXPECT_NEAR(circle.levels[1], std::sqrt(2) * 2 / std::numbers::pi, 1e-10);
  const Quantiser flat = lloyd_max(sphere_density(3), 8);  // uniform on [-sqrt 3, sqrt 3]
  for (size_t j = 0; j < 8; ++j) EXPECT_NEAR(flat.levels[j], std::sqrt(3) * (2.0 * double(j) - 7) / 8, 1e-10);
}

TEST(LloydMax, laplace_table) {
  const double unit = std::sqrt(0.5);  // of unit variance
  const Density laplace = laplace_density(45);
  expect_table(laplace, lloyd_max(laplace, 2), unit, 0.500000, 1e-6, {0.707107});
  expect_table(laplace, lloyd_max(laplace, 4), unit, 0.176195, 1e-6, {0.419756, 1.833969});
  expect_table(laplace, lloyd_max(laplace, 8), unit, 0.054476, 1e-6, {0.233401, 0.832962, 1.672473, 3.086687});
  expect_table(laplace, lloyd_max(laplace, 16), unit, 0.015373, 1e-6,
               {0.123986, 0.404839, 0.728650, 1.110984, 1.577786, 2.177347, 3.016858, 4.431072});
}

/// Cosine of x and its two-stage code over x of N(0, 1).
double two_stage_cosine(const Quantiser& first, const Quantiser& second) {
  const Density normal = normal_density();
  double along = 0, energy = 0;
  for (size_t i = 0; i < first.levels.size(); ++i) {
    const double low = i == 0 ? -INFINITY : first.bounds[i - 1];
    const double high = i == first.bounds.size() ? INFINITY : first.bounds[i];
    for (size_t j = 0; j < second.levels.size(); ++j) {
      const double from = j == 0 ? -INFINITY : first.levels[i] + second.bounds[j - 1];
      const double to = j == second.bounds.size() ? INFINITY : first.levels[i] + second.bounds[j];
      const Moments cell = moments(normal, std::max(low, from), std::min(high, to));
      const double level = first.levels[i] + second.levels[j];
      along += level * cell.first;
      energy += level * level * cell.mass;
    }
  }
  return along / std::sqrt(energy);
}

TEST(LloydMax, residual_table) {
  // The published digits integrate the tail of N(0, 1) less far: 4e-6 at the outermost level.
  const std::vector<std::vector<double>> levels = {
      {0.482624},
      {0.150037, 0.451258},
      {0.053463, 0.160439, 0.267567, 0.875346},
      {0.014720, 0.044161, 0.073606, 0.103056, 0.132513, 0.189564, 0.310019, 0.835867}};
  const double deviation[] = {0.602809, 0.342756, 0.185869, 0.097472};
  const double mse[] = {0.130454, 0.019646, 0.001944, 0.000188};
  const double cosine[] = {0.9349, 0.9906, 0.9990, 0.9999};
  const Density normal = normal_density();
  for (size_t b = 0; b < 4; ++b) {
    const Quantiser first = lloyd_max(normal, 2 << b);
    const Density residual = residual_density(normal, first.levels, first.bounds);
    EXPECT_NEAR(residual.deviation, deviation[b], 2e-6);
    const Quantiser second = lloyd_max_from_grid(residual, 2 << b, 2.2);
    expect_table(residual, second, 1, mse[b], 1e-6, levels[b], 5e-6);
    EXPECT_NEAR(two_stage_cosine(first, second), cosine[b], 6e-5);
  }
}

TEST(LloydMax, reference_laplace_stage) {
  const std::vector<std::vector<double>> levels = {
      {0.270622}, {0.040026, 0.174281}, {0.005521, 0.019645, 0.039280, 0.071766}};
  const double total[] = {0.175399, 0.048889, 0.017802, 0.006244};
  const Density normal = normal_density(), laplace = laplace_density(8);
  for (size_t b = 0; b < 4; ++b) {
    const double scale = std::sqrt(3 * std::numbers::pi) / 2 * std::pow(4.0, -double(b + 1)) / std::sqrt(2);
    Quantiser second = lloyd_max(laplace, 2 << b);
    for (double& level : second.levels) level *= scale;
    const size_t half = second.levels.size() / 2;
    for (size_t j = 0; b < 3 && j < half; ++j) EXPECT_NEAR(second.levels[half + j], levels[b][j], 1.01e-6);
    const Quantiser first = lloyd_max(normal, 2 << b);
    const Density residual = residual_density(normal, first.levels, first.bounds);
    EXPECT_NEAR(mean_squared_error(residual, second.levels, midpoints(second.levels)), total[b], 2e-6);
  }
}

std::vector<double> doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

TEST(ScalarTable, integer_levels_cost_nothing) {
  const double optimum[] = {0.363380, 0.117482, 0.034548, 0.009501};
  for (int bits = 1; bits <= 4; ++bits) {
    const auto tables = lloyd_tables(128, bits, Stage2::none, 0);
    const ScalarTable& table = tables->table;
    ASSERT_EQ(table.integer.size(), size_t{1} << bits);
    for (size_t j = 0; j < table.levels.size(); ++j) {
      EXPECT_EQ(table.levels[j], table.unit * static_cast<float>(table.integer[j]));
    }
    const double mse = mean_squared_error(normal_density(), doubles(table.levels), doubles(tables->bounds));
    EXPECT_NEAR(mse / optimum[bits - 1], 1, 1.5e-3) << bits;
  }
  const auto two = lloyd_tables(128, 2, Stage2::none, 0);
  EXPECT_EQ(two->table.integer, (std::vector<int8_t>{-10, -3, 3, 10}));
  EXPECT_NEAR(mean_squared_error(normal_density(), doubles(two->table.levels), doubles(two->bounds)), 0.117482, 5e-7);
}

TEST(ScalarTable, where_integers_are_used) {
  for (int dim : {8, 31, 32, 63, 64, 128}) {
    for (int bits = 1; bits <= 8; ++bits) {
      EXPECT_EQ(lloyd_tables(dim, bits, Stage2::none, 0)->table.integer.empty(), dim < 32 || bits > 4);
    }
    for (Stage2 stage2 : {Stage2::joint, Stage2::matched, Stage2::laplace}) {
      for (int bits = 1; bits <= 4; ++bits) {
        const bool integers = stage2 != Stage2::laplace && dim >= 32 && bits <= 2;
        EXPECT_EQ(lloyd_tables(dim, bits, stage2, 0.1)->table.integer.empty(), !integers);
      }
    }
  }
}

TEST(ScalarTable, joint_is_the_table_of_twice_the_bits_and_tables_are_shared) {
  EXPECT_EQ(lloyd_tables(128, 2, Stage2::joint, 0), lloyd_tables(128, 4, Stage2::none, 0));
  EXPECT_EQ(lloyd_tables(128, 2, Stage2::none, 0), lloyd_tables(64, 2, Stage2::none, 0));
  EXPECT_NE(lloyd_tables(128, 2, Stage2::none, 0), lloyd_tables(63, 2, Stage2::none, 0));
}

TEST(ScalarTable, two_stage_levels_are_sums) {
  for (Stage2 stage2 : {Stage2::matched, Stage2::laplace}) {
    for (int bits = 1; bits <= 4; ++bits) {
      const auto tables = lloyd_tables(128, bits, stage2, 0.05);
      const size_t size = size_t{1} << bits;
      for (size_t i = 0; i < size; ++i) {
        for (size_t j = 0; j < size; ++j) {
          const float step = tables->table.levels[i * size + j] - tables->table.levels[i * size];
          EXPECT_NEAR(step, tables->table.levels[j] - tables->table.levels[0], 1e-6);
        }
        const float middle = (tables->table.levels[i * size] + tables->table.levels[i * size + size - 1]) / 2;
        EXPECT_NEAR(middle, tables->first[i], 1e-6);
      }
      EXPECT_EQ(tables->bounds, lloyd_tables(128, bits, Stage2::none, 0)->bounds);
    }
  }
}

}  // namespace
}  // namespace veloxquant
