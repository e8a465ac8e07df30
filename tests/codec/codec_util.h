// What the codec tests share: seeded rows, encoding into blocks, measures of error.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/philox.h"
#include "veloxquant/codec.h"
#include "veloxquant/codecs.h"

namespace veloxquant::test {

struct Rows {
  int rows = 0, dim = 0;
  std::vector<float> x;

  Rows(int n, int channels) : rows(n), dim(channels), x(static_cast<size_t>(n) * static_cast<size_t>(channels)) {}
  float* row(int r) { return x.data() + int64_t{r} * dim; }
  const float* row(int r) const { return x.data() + int64_t{r} * dim; }
  float& at(int r, int c) { return row(r)[c]; }
  float at(int r, int c) const { return row(r)[c]; }
  RowsView view(int first, int n) const { return {row(first), dim, n, dim}; }
};

inline Rows gaussian_rows(int rows, int dim, uint64_t seed, float sigma = 1) {
  Rows out(rows, dim);
  const Random random(seed, Purpose::probes, 0);
  for (size_t i = 0; i < out.x.size(); ++i) out.x[i] = sigma * static_cast<float>(random.normal(i));
  return out;
}

/// Uniform directions of one length.
inline Rows directions(int rows, int dim, uint64_t seed, double length) {
  Rows out = gaussian_rows(rows, dim, seed);
  for (int r = 0; r < rows; ++r) {
    double energy = 0;
    for (int c = 0; c < dim; ++c) energy += double{out.at(r, c)} * double{out.at(r, c)};
    const double factor = length / std::sqrt(energy);
    for (int c = 0; c < dim; ++c) out.at(r, c) = static_cast<float>(out.at(r, c) * factor);
  }
  return out;
}

using Block = std::vector<std::byte>;

/// Whole units of `rows` in as many blocks as they need; bytes not written stay 0xA5.
inline std::vector<Block> encode_blocks(const Codec& codec, const Rows& rows) {
  const BlockFormat& format = codec.format();
  std::vector<Block> blocks;
  for (int first = 0; first < rows.rows; first += format.capacity_rows()) {
    const int n = std::min(format.capacity_rows(), rows.rows - first);
    blocks.emplace_back(format.block_bytes(), std::byte{0xA5});
    codec.encode(rows.view(first, n), blocks.back().data(), 0);
  }
  return blocks;
}

inline Rows decode_blocks(const Codec& codec, const std::vector<Block>& blocks, int rows) {
  Rows out(rows, codec.dim());
  const int capacity = codec.format().capacity_rows();
  for (int first = 0; first < rows; first += capacity) {
    codec.decode(blocks[static_cast<size_t>(first / capacity)].data(), {0, std::min(capacity, rows - first)},
                 out.row(first), codec.dim());
  }
  return out;
}

inline Rows round_trip(const Codec& codec, const Rows& rows) {
  return decode_blocks(codec, encode_blocks(codec, rows), rows.rows);
}

inline double mean_squared_error(const Rows& a, const Rows& b) {
  double sum = 0;
  for (size_t i = 0; i < a.x.size(); ++i) sum += std::pow(double{a.x[i]} - double{b.x[i]}, 2);
  return sum / static_cast<double>(a.x.size());
}

/// logit[q.rows][rows] of rows in layout 0.
inline Rows scores(const Codec& codec, const std::vector<Block>& blocks, int rows, const Rows& q) {
  std::vector<float> prep(static_cast<size_t>(q.rows) * static_cast<size_t>(codec.floats().query));
  std::vector<float> tile(static_cast<size_t>(codec.floats().tile));
  codec.prepare_query(q.x.data(), q.rows, prep.data());
  Rows logit(q.rows, rows);
  const int capacity = codec.format().capacity_rows();
  for (int first = 0; first < rows; first += capacity) {
    codec.score(prep.data(), q.rows, blocks[static_cast<size_t>(first / capacity)].data(),
                {0, std::min(capacity, rows - first)}, logit.row(0) + first, rows, tile.data());
  }
  return logit;
}
inline Rows scores(const Codec& codec, const Rows& k, const Rows& q) {
  return scores(codec, encode_blocks(codec, k), k.rows, q);
}

inline double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int c = 0; c < n; ++c) sum += double{a[c]} * double{b[c]};
  return sum;
}

/// Of estimates of inner products of all rows of q and k.
struct ProductError {
  double squared = 0;      ///< mean of (estimate - <q, k>)^2
  double slope = 0;        ///< of the estimate on <q, k>
  double correlation = 0;  ///< of the two
};
inline ProductError product_error(const Codec& codec, const Rows& k, const Rows& q) {
  const Rows logit = scores(codec, k, q);
  double error = 0, xx = 0, xy = 0, yy = 0;
  for (int i = 0; i < q.rows; ++i) {
    for (int r = 0; r < k.rows; ++r) {
      const double x = dot(q.row(i), k.row(r), k.dim), y = logit.at(i, r);
      error += (y - x) * (y - x);
      xx += x * x;
      xy += x * y;
      yy += y * y;
    }
  }
  return {error / q.rows / k.rows, xy / xx, xy / std::sqrt(xx * yy)};
}

/// Block of the same rows in layout 1; empty where there is none.
inline Block sealed(const Codec& codec, Block block) {
  block.resize(codec.format().block_bytes());
  if (!codec.seal(block.data())) block.clear();
  return block;
}

struct Distortion {
  double error = 0;   ///< mean of |x - y|^2 / |x|^2 over rows
  double cosine = 0;  ///< mean cosine of x and y
};

inline Distortion distortion(const Rows& x, const Rows& y) {
  Distortion mean;
  for (int r = 0; r < x.rows; ++r) {
    double xx = 0, yy = 0, xy = 0, error = 0;
    for (int c = 0; c < x.dim; ++c) {
      const double a = x.at(r, c), b = y.at(r, c);
      xx += a * a;
      yy += b * b;
      xy += a * b;
      error += (a - b) * (a - b);
    }
    mean.error += error / xx / x.rows;
    mean.cosine += xy / std::sqrt(xx * yy) / x.rows;
  }
  return mean;
}

inline LloydRow lloyd(int dim, int bits, Stage2 stage2 = Stage2::none, uint64_t seed = 42) {
  LloydRow options;
  options.dim = dim;
  options.bits = bits;
  options.stage2 = stage2;
  options.seed = seed;
  return options;
}

/// A split whose outlier channels are 1, 1 + dim / n, ..
inline std::shared_ptr<const Codec> fitted_split(int dim, std::shared_ptr<const Codec> outlier,
                                                 std::shared_ptr<const Codec> inlier) {
  Rows x(1, dim);
  const int n = outlier->dim();
  for (int i = 0; i < n; ++i) x.at(0, (1 + i * (dim / n)) % dim) = 1;
  return channel_split({dim, 1, std::move(outlier), std::move(inlier)})->fit(x.view(0, 1));
}

/// One codec of every kind and a spread of widths, at one dim.
inline std::vector<std::shared_ptr<const Codec>> all_codecs(int dim) {
  std::vector<std::shared_ptr<const Codec>> codecs;
  for (DType type : {DType::f16, DType::bf16, DType::f32}) codecs.push_back(raw_rows(type, dim));
  codecs.push_back(int8_row(dim));
  for (int bits : {1, 2, 3, 4, 8}) codecs.push_back(affine_row(dim, bits, 32));
  for (int bits : {2, 5, 8}) codecs.push_back(affine_block(dim, bits, 32));
  codecs.push_back(affine_block(dim, 4, 20));
  for (int bits : {1, 2, 3, 4, 6}) codecs.push_back(lloyd_row(lloyd(dim, bits)));
  for (Stage2 stage2 : {Stage2::joint, Stage2::matched, Stage2::laplace}) {
    for (int bits : {1, 2, 3}) codecs.push_back(lloyd_row(lloyd(dim, bits, stage2)));
  }
  for (SketchRows kind : {SketchRows::gaussian, SketchRows::orthogonal}) {
    for (int m : {dim, 2 * dim + 5}) codecs.push_back(sign_sketch({.dim = dim, .rows = m, .kind = kind, .seed = 42}));
    for (int bits : {1, 2, 4}) codecs.push_back(residual_sketch({.dim = dim, .bits = bits, .kind = kind, .seed = 42}));
  }
  const int outliers = dim % 32 == 0 ? 32 : 3;
  for (int inlier_dim : {dim - outliers, dim}) {
    codecs.push_back(fitted_split(dim, lloyd_row(lloyd(outliers, 3)), lloyd_row(lloyd(inlier_dim, 2))));
  }
  codecs.push_back(fitted_split(dim, residual_sketch({.dim = outliers, .bits = 3, .seed = 42}),
                                residual_sketch({.dim = dim - outliers, .bits = 2, .seed = 43})));
  return codecs;
}

}  // namespace veloxquant::test
