// Rows through a codec by itself, without a cache around it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "veloxquant/codecs.h"

namespace veloxquant::test {

using Block = std::vector<std::byte>;

/// Storage blocks of the rows x[n][dim]; bytes that nothing is written to stay NaN in every element type.
inline std::vector<Block> encode(const Codec& codec, const std::vector<float>& x) {
  const int dim = codec.dim(), rows = static_cast<int>(x.size()) / dim, capacity = codec.format().capacity_rows();
  std::vector<Block> blocks;
  for (int first = 0; first < rows; first += capacity) {
    blocks.emplace_back(codec.format().block_bytes(), std::byte{0xFF});
    codec.encode({x.data() + int64_t{first} * dim, dim, std::min(capacity, rows - first), dim}, blocks.back().data(),
                 0);
  }
  return blocks;
}

inline std::vector<float> decode(const Codec& codec, const std::vector<Block>& blocks, int rows) {
  const int dim = codec.dim(), capacity = codec.format().capacity_rows();
  std::vector<float> out(static_cast<size_t>(rows) * static_cast<size_t>(dim));
  for (int first = 0; first < rows; first += capacity) {
    codec.decode(blocks[static_cast<size_t>(first / capacity)].data(), {0, std::min(capacity, rows - first)},
                 out.data() + int64_t{first} * dim, dim);
  }
  return out;
}

inline std::vector<float> round_trip(const Codec& codec, const std::vector<float>& x) {
  return decode(codec, encode(codec, x), static_cast<int>(x.size()) / codec.dim());
}

/// q . k^ of one query with rows [0, rows) of the first block, through the codec's own score.
inline std::vector<float> scores(const Codec& codec, const std::vector<float>& q, const Block& block, int rows) {
  std::vector<float> prepared(static_cast<size_t>(codec.floats().query)),
      tile(static_cast<size_t>(codec.floats().tile));
  std::vector<float> logit(static_cast<size_t>(rows));
  codec.prepare_query(q.data(), 1, prepared.data());
  codec.score(prepared.data(), 1, block.data(), {0, rows}, logit.data(), rows, tile.data());
  return logit;
}

/// Sum of weight[row] * v^ over rows [0, rows) of the first block.
inline std::vector<float> weighted_sum(const Codec& codec, const std::vector<float>& weight, const Block& block) {
  std::vector<float> acc(static_cast<size_t>(codec.floats().acc)), tile(static_cast<size_t>(codec.floats().tile));
  std::vector<float> out(static_cast<size_t>(codec.dim()));
  const int rows = static_cast<int>(weight.size());
  codec.accumulate(weight.data(), rows, 1, block.data(), {0, rows}, acc.data(), tile.data());
  codec.finish(acc.data(), 1, out.data());
  return out;
}

/// Mean over rows of |x - y|^2 / |x|^2.
inline double mean_row_error(const std::vector<float>& x, const std::vector<float>& y, int dim) {
  const size_t width = static_cast<size_t>(dim), rows = x.size() / width;
  double mean = 0;
  for (size_t r = 0; r < rows; ++r) {
    double error = 0, energy = 0;
    for (size_t i = r * width; i < (r + 1) * width; ++i) {
      error += (double{x[i]} - double{y[i]}) * (double{x[i]} - double{y[i]});
      energy += double{x[i]} * double{x[i]};
    }
    mean += error / energy / static_cast<double>(rows);
  }
  return mean;
}

}  // namespace veloxquant::test
