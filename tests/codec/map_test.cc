#include "codec/map/orthogonal_map.h"

#include <cmath>

#include <gtest/gtest.h>

#include "codec_util.h"

namespace veloxquant::test {
namespace {

constexpr int kSizes[] = {1, 2, 12, 20, 24, 28, 40, 56, 64, 72, 80, 96, 100, 112, 128, 160, 192, 256, 576};

double norm(const float* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double{x[i]} * double{x[i]};
  return std::sqrt(sum);
}

void expect_orthogonal(const OrthogonalMap& map, const Rows& x) {
  Rows y(x.rows, x.dim), back(x.rows, x.dim);
  map.forward(x.rows, x.x.data(), x.dim, y.x.data(), x.dim);
  map.inverse(x.rows, y.x.data(), x.dim, back.x.data(), x.dim);
  for (int r = 0; r < x.rows; ++r) {
    EXPECT_NEAR(norm(y.row(r), x.dim) / norm(x.row(r), x.dim), 1, 1e-5) << "dim " << x.dim;
    for (int c = 0; c < x.dim; ++c) EXPECT_NEAR(back.at(r, c), x.at(r, c), 1e-5 * norm(x.row(r), x.dim));
  }
}

TEST(Map, every_size_is_orthogonal) {  // BL-064, BL-065
  for (int dim : kSizes) {
    Rows x = gaussian_rows(4, dim, 1);
    std::fill_n(x.row(3), dim, 0.0f);
    x.at(3, 0) = 1;
    for (int rounds : {1, 2, 3}) expect_orthogonal(*rht(dim, rounds, 42, 0), x);
    expect_orthogonal(*haar(dim, 42, 0), x);
  }
}

TEST(Map, inner_products_are_kept) {  // BL-065
  for (int dim : kSizes) {
    const Rows x = gaussian_rows(2, dim, 3);
    Rows y(2, dim);
    rht(dim, 2, 42, 0)->forward(2, x.x.data(), dim, y.x.data(), dim);
    double before = 0, after = 0;
    for (int c = 0; c < dim; ++c) {
      before += double{x.at(0, c)} * double{x.at(1, c)};
      after += double{y.at(0, c)} * double{y.at(1, c)};
    }
    EXPECT_NEAR(after, before, 1e-5 * norm(x.row(0), dim) * norm(x.row(1), dim));
  }
}

TEST(Map, hadamard_orders) {
  for (int dim : {1, 2, 4, 12, 20, 24, 28, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256}) {
    EXPECT_TRUE(has_hadamard(dim)) << dim;
  }
  for (int dim : {0, 3, 5, 6, 7, 10, 14, 36, 72, 100, 576}) EXPECT_FALSE(has_hadamard(dim)) << dim;
}

TEST(Map, one_round_spreads_one_channel_evenly) {
  for (int dim : {12, 20, 28, 64, 80, 96, 112, 128, 192}) {
    Rows x(1, dim), y(1, dim);
    x.at(0, dim / 3) = 1;
    rht(dim, 1, 42, 0)->forward(1, x.x.data(), dim, y.x.data(), dim);
    for (int c = 0; c < dim; ++c) EXPECT_NEAR(std::fabs(y.at(0, c)), 1 / std::sqrt(dim), 1e-6) << dim;
  }
}

TEST(Map, in_place_equals_out_of_place_and_rows_are_independent) {
  for (int dim : {1, 2, 72, 80, 128}) {
    for (const auto& map : {rht(dim, 2, 9, 0), haar(dim, 9, 0)}) {
      const Rows x = gaussian_rows(5, dim, 4);
      Rows all(5, dim), one(5, dim), in_place = x;
      map->forward(5, x.x.data(), dim, all.x.data(), dim);
      for (int r = 0; r < 5; ++r) map->forward(1, x.row(r), dim, one.row(r), dim);
      map->forward(5, in_place.x.data(), dim, in_place.x.data(), dim);
      EXPECT_EQ(all.x, one.x);
      EXPECT_EQ(all.x, in_place.x);
      Rows back(5, dim);
      map->inverse(5, all.x.data(), dim, back.x.data(), dim);
      map->inverse(5, in_place.x.data(), dim, in_place.x.data(), dim);
      EXPECT_EQ(back.x, in_place.x);
    }
  }
}

TEST(Map, seed_and_stream_choose_the_map) {
  const Rows x = gaussian_rows(1, 128, 5);
  const auto image = [&](const std::shared_ptr<const OrthogonalMap>& map) {
    Rows y(1, 128);
    map->forward(1, x.x.data(), 128, y.x.data(), 128);
    return y.x;
  };
  EXPECT_EQ(image(rht(128, 2, 1, 0)), image(rht(128, 2, 1, 0)));
  EXPECT_NE(image(rht(128, 2, 1, 0)), image(rht(128, 2, 2, 0)));
  EXPECT_NE(image(rht(128, 2, 1, 0)), image(rht(128, 2, 1, 1)));
  EXPECT_NE(image(haar(128, 1, 0)), image(haar(128, 1, 1)));
}

TEST(Map, haar_has_random_signs_on_the_diagonal) {
  // Without the signs of R the first column of Q always points against the first channel of G.
  int positive = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Rows x(1, 8), y(1, 8);
    x.at(0, 0) = 1;
    haar(8, seed, 0)->forward(1, x.x.data(), 8, y.x.data(), 8);
    positive += y.at(0, 0) > 0;
  }
  EXPECT_GT(positive, 8);
  EXPECT_LT(positive, 32);
}

}  // namespace
}  // namespace veloxquant::test
