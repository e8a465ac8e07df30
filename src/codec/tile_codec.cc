#include "codec/tile_codec.h"

#include <algorithm>
#include <vector>

#include "kernels/kernels.h"

namespace veloxquant {
namespace {

/// Up to this many queries a row's dot products cost less than turning the tile, which takes about as long as eight of
/// them. The choice must not depend on the range: the two ways differ in rounding.
constexpr int kDotQueries = 8;

}  // namespace

CodecFloats TileCodec::floats() const { return {dim_, dim_, 2 * format_.capacity_rows() * dim_}; }

TileCodec::ChannelTile TileCodec::channels(const std::byte* block, Range range, float* tile) const {
  const int unit_rows = format_.unit_rows;
  const Range units{range.begin / unit_rows, (range.end + unit_rows - 1) / unit_rows};
  if (order_ == CodeOrder::channels) {
    const int64_t ld = int64_t{units.size()} * unit_rows;
    unpack(block, units, tile, ld);
    return {tile + (range.begin - units.begin * unit_rows), ld};
  }
  float* turned = tile + int64_t{format_.capacity_rows()} * dim_;
  rows(block, range, tile, dim_, nullptr);
  kernels::transpose(range.size(), dim_, tile, dim_, turned, range.size());
  return {turned, range.size()};
}

void TileCodec::rows(const std::byte* block, Range range, float* out, int64_t ld, float* tile) const {
  if (order_ == CodeOrder::channels) {
    const ChannelTile turned = channels(block, range, tile);
    kernels::transpose(dim_, range.size(), turned.first, turned.ld, out, ld);
  } else {
    unpack(block, range, out, ld);  // every codec in row order has units of one row
  }
}

void TileCodec::decode(const std::byte* block, Range range, float* out, int64_t ld) const {
  if (range.empty()) return;
  std::vector<float> tile(order_ == CodeOrder::channels ? static_cast<size_t>(floats().tile) : 0);
  rows(block, range, out, ld, tile.data());
  if (map_) map_->inverse(range.size(), out, ld, out, ld);
}

void TileCodec::prepare_query(const float* q, int n, float* prep) const {
  if (map_) {
    map_->forward(n, q, dim_, prep, dim_);
  } else {
    std::copy_n(q, int64_t{n} * dim_, prep);
  }
}

void TileCodec::score(const float* prep, int n, const std::byte* block, Range range, float* logit, int64_t ld,
                      float* tile) const {
  if (range.empty()) return;
  if (order_ == CodeOrder::rows && n <= kDotQueries) {
    rows(block, range, tile, dim_, nullptr);
    kernels::dot_rows(n, range.size(), dim_, prep, dim_, tile, dim_, logit, ld);
    return;
  }
  const ChannelTile turned = channels(block, range, tile);
  for (int i = 0; i < n; ++i) std::fill_n(logit + i * ld, range.size(), 0.0f);
  kernels::multiply_accumulate(n, range.size(), dim_, prep, dim_, 1, turned.first, turned.ld, logit, ld);
}

void TileCodec::accumulate(const float* weight, int64_t ld, int n, const std::byte* block, Range range, float* acc,
                           float* tile) const {
  if (range.empty()) return;
  float* by_row = tile + int64_t{format_.capacity_rows()} * dim_;
  rows(block, range, by_row, dim_, tile);
  kernels::multiply_accumulate(n, dim_, range.size(), weight, ld, 1, by_row, dim_, acc, dim_);
}

void TileCodec::finish(const float* acc, int n, float* out) const {
  const int64_t total = int64_t{n} * dim_;
  if (map_) {
    thread_local std::vector<float> turned_back;  // kept, so that a steady decode loop allocates nothing
    turned_back.resize(static_cast<size_t>(total));
    map_->inverse(n, acc, dim_, turned_back.data(), dim_);
    acc = turned_back.data();
  }
  for (int64_t i = 0; i < total; ++i) out[i] += acc[i];
}

}  // namespace veloxquant
