#include "codec/tile_codec.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "codec/encode_scratch.h"
#include "codec/pack.h"
#include "core/check.h"
#include "kernels/kernels.h"
#include "kernels/tile_plain.h"

namespace veloxquant {
namespace {

/// Up to this many queries a row's dot products cost less than turning the tile, which takes about as long as eight of
/// them. The choice must not depend on the range: the two ways differ in rounding.
constexpr int kDotQueries = 8;

}  // namespace

void TileCodec::set_tiles(std::unique_ptr<const TileAttention> tiles) {
  VQ_CHECK(format_.capacity_rows() % kTileRows == 0);
  tiles_ = std::move(tiles);
  floats_.query = frame_ + tiles_->query_floats();
  floats_.tile = std::max(floats_.tile, int64_t{tiles_->scratch_floats()});
}

// --- layouts -------------------------------------------------------------------------------------

void TileCodec::get_codes(const std::byte* block, Range rows, uint8_t* codes) const {
  for (int r = rows.begin; r < rows.end; ++r, codes += frame_) {
    unpack_run(block + format_.offset(0, r), frame_, tiles_->grid().bits, Packing::bit_string, codes);
  }
}
void TileCodec::put_codes(const uint8_t* codes, Range rows, std::byte* block) const {
  pack_runs(codes, rows.size(), frame_, tiles_->grid().bits, Packing::bit_string,
            block + format_.offset(0, rows.begin));
}
void TileCodec::encode_tiles(const RowsView&, uint8_t*, std::byte*) const { VQ_CHECK(false); }
bool TileCodec::seal_parameters(const std::byte* plain, std::byte* sealed) const {
  std::memcpy(sealed, plain, parameter_bytes());
  return true;
}
void TileCodec::unseal_parameters(const std::byte* sealed, std::byte* plain) const {
  std::memcpy(plain, sealed, parameter_bytes());
}

size_t TileCodec::parameter_bytes() const {
  const auto tiles = static_cast<size_t>(format_.capacity_rows() / kTileRows);
  return format_.block_bytes() - tiles * tiles_->grid().bytes();
}

// They are the last part.
size_t TileCodec::parameter_offset() const {
  int part = BlockFormat::kParts - 1;
  while (format_.part_bytes[static_cast<size_t>(part)] == 0) --part;
  return format_.offset(part, 0);
}

bool TileCodec::encode_block(const RowsView& rows, std::byte* block) const {
  if (!tiles_) return false;
  VQ_CHECK(rows.rows == format_.capacity_rows());
  thread_local std::vector<std::byte> parameters;  // kept, as the codes are
  if (parameters.size() < parameter_bytes()) parameters.resize(parameter_bytes());
  uint8_t* codes = encode_scratch<uint8_t>(static_cast<size_t>(rows.rows) * static_cast<size_t>(frame_));
  encode_tiles(rows, codes, parameters.data());
  if (!seal_parameters(parameters.data(), block)) return false;
  const bool by_channel = order_ == CodeOrder::channels;
  std::byte* tile = block + parameter_bytes();
  for (int row = 0; row < rows.rows; row += kTileRows, tile += tiles_->grid().bytes()) {
    kernels::tile_kernels().pack(tiles_->grid(), codes, by_channel ? kTileRows : frame_, by_channel, tile);
    codes += int64_t{kTileRows} * frame_;
  }
  return true;
}

bool TileCodec::seal(std::byte* block) const {
  if (!tiles_) return false;
  std::vector<std::byte> sealed(format_.block_bytes());
  if (!seal_parameters(block + parameter_offset(), sealed.data())) return false;
  std::vector<uint8_t> codes(static_cast<size_t>(kTileRows) * static_cast<size_t>(frame_));
  std::byte* tile = sealed.data() + parameter_bytes();
  for (int row = 0; row < format_.capacity_rows(); row += kTileRows, tile += tiles_->grid().bytes()) {
    get_codes(block, {row, row + kTileRows}, codes.data());
    kernels::tile_kernels().pack(tiles_->grid(), codes.data(), frame_, false, tile);
  }
  std::memcpy(block, sealed.data(), sealed.size());
  return true;
}

void TileCodec::unseal(std::byte* block) const {
  const std::vector<std::byte> sealed(block, block + format_.block_bytes());
  std::fill_n(block, sealed.size(), std::byte{0});
  unseal_parameters(sealed.data(), block + parameter_offset());
  std::vector<uint8_t> codes(static_cast<size_t>(kTileRows) * static_cast<size_t>(frame_));
  const std::byte* tile = sealed.data() + parameter_bytes();
  for (int row = 0; row < format_.capacity_rows(); row += kTileRows, tile += tiles_->grid().bytes()) {
    kernels::plain::unpack(tiles_->grid(), tile, codes.data(), frame_);
    put_codes(codes.data(), {row, row + kTileRows}, block);
  }
}

const std::byte* TileCodec::plain(BlockView block) const {
  if (block.layout == 0) return block.data;
  thread_local std::vector<std::byte> copy;
  copy.assign(block.data, block.data + format_.block_bytes());
  unseal(copy.data());
  return copy.data();
}

// --- tiles of fp32 -------------------------------------------------------------------------------

TileCodec::ChannelTile TileCodec::channels(const std::byte* block, Range range, float* tile) const {
  const int unit_rows = format_.unit_rows;
  const Range units{range.begin / unit_rows, (range.end + unit_rows - 1) / unit_rows};
  if (order_ == CodeOrder::channels) {
    const int64_t ld = int64_t{units.size()} * unit_rows;
    unpack(block, units, tile, ld);
    return {tile + (range.begin - units.begin * unit_rows), ld};
  }
  float* turned = tile + int64_t{format_.capacity_rows()} * frame_;
  rows(block, range, tile, frame_, nullptr);
  kernels::transpose(range.size(), frame_, tile, frame_, turned, range.size());
  return {turned, range.size()};
}

void TileCodec::rows(const std::byte* block, Range range, float* out, int64_t ld, float* tile) const {
  if (order_ == CodeOrder::channels) {
    const ChannelTile turned = channels(block, range, tile);
    kernels::transpose(frame_, range.size(), turned.first, turned.ld, out, ld);
  } else {
    unpack(block, range, out, ld);  // every codec in row order has units of one row
  }
}

void TileCodec::decode(BlockView block, Range range, float* out, int64_t ld) const {
  if (range.empty()) return;
  std::vector<float> tile(order_ == CodeOrder::channels ? static_cast<size_t>(floats_.tile) : 0);
  if (!map_) return rows(plain(block), range, out, ld, tile.data());
  std::vector<float> framed(static_cast<size_t>(range.size()) * static_cast<size_t>(frame_));
  rows(plain(block), range, framed.data(), frame_, tile.data());
  map_->adjoint(range.size(), framed.data(), frame_, out, ld);
}

void TileCodec::prepare_query(const float* q, int n, float* prep) const {
  const int64_t stride = floats_.query;
  if (map_) {
    map_->forward(n, q, dim_, prep, stride);
  } else {
    for (int i = 0; i < n; ++i) std::copy_n(q + int64_t{i} * frame_, frame_, prep + i * stride);
  }
  for (int i = 0; tiles_ && i < n; ++i) tiles_->prepare(prep + i * stride, prep + i * stride + frame_);
}

// visit(tile, rows inside the tile, first of these rows counted from range.begin) for every tile that meets `range`.
template <class Visit>
void TileCodec::for_each_tile(BlockView block, Range range, Visit&& visit) const {
  const std::byte* codes = block.data + parameter_bytes();
  const auto tile_bytes = tiles_->grid().bytes();
  for (int row = range.begin; row < range.end;) {
    const int index = row / kTileRows, first = index * kTileRows;
    const int until = std::min(range.end, first + kTileRows);
    const std::byte* own = codes + static_cast<size_t>(index) * tile_bytes;
    const std::byte* ahead = until < range.end ? own + tile_bytes
                             : block.next      ? block.next + parameter_bytes()
                                               : nullptr;
    visit(SealedTile{block.data, own, index, ahead}, Range{row - first, until - first}, row - range.begin);
    row = until;
  }
}

void TileCodec::score(const float* prep, int n, BlockView block, Range range, float* logit, int64_t ld,
                      float* tile) const {
  if (range.empty()) return;
  const int64_t stride = floats_.query;
  if (tiled(block, Side::key)) {
    for_each_tile(block, range, [&](const SealedTile& sealed, Range rows, int at) {
      tiles_->score(prep, stride, n, sealed, rows, logit + at, ld, tile);
    });
    return;
  }
  const std::byte* data = plain(block);
  if (order_ == CodeOrder::rows && n <= kDotQueries) {
    rows(data, range, tile, frame_, nullptr);
    kernels::dot_rows(n, range.size(), frame_, prep, stride, tile, frame_, logit, ld);
    return;
  }
  const ChannelTile turned = channels(data, range, tile);
  for (int i = 0; i < n; ++i) std::fill_n(logit + i * ld, range.size(), 0.0f);
  kernels::multiply_accumulate(n, range.size(), frame_, prep, stride, 1, turned.first, turned.ld, logit, ld);
}

void TileCodec::accumulate(const float* weight, int64_t ld, int n, BlockView block, Range range, float* acc,
                           float* tile) const {
  if (range.empty()) return;
  if (tiled(block, Side::value)) {
    for_each_tile(block, range, [&](const SealedTile& sealed, Range rows, int at) {
      tiles_->accumulate(weight + at, ld, n, sealed, rows, acc, tile);
    });
    return;
  }
  float* by_row = tile + int64_t{format_.capacity_rows()} * frame_;
  rows(plain(block), range, by_row, frame_, tile);
  kernels::multiply_accumulate(n, frame_, range.size(), weight, ld, 1, by_row, frame_, acc, frame_);
}

void TileCodec::finish(const float* acc, int n, float* out) const {
  const int64_t total = int64_t{n} * dim_;
  if (map_) {
    thread_local std::vector<float> turned_back;  // kept, so that a steady decode loop allocates nothing
    turned_back.resize(static_cast<size_t>(total));
    map_->adjoint(n, acc, frame_, turned_back.data(), dim_);
    acc = turned_back.data();
  }
  for (int64_t i = 0; i < total; ++i) out[i] += acc[i];
}

}  // namespace veloxquant
