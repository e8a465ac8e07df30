// Exact rows in their element type. Block: [row 0 | row 1 | ..], dim elements a row. Few queries attend from the rows
// as they lie; many share an unpacked tile.
#include "codec/codec_check.h"
#include "codec/tile_codec.h"
#include "kernels/kernels.h"
#include "veloxquant/codecs.h"

namespace veloxquant {
namespace {

/// Up to this many queries converting a row again for every four of them costs less than a tile. The choice must not
/// depend on the range: the two ways of scoring differ in rounding.
constexpr int kDirectQueries = 8;

class RawRows final : public TileCodec {
 public:
  RawRows(DType type, int dim, int block_rows)
      : TileCodec(std::string(to_string(type)), dim,
                  BlockFormat{1, block_rows, {static_cast<size_t>(dim) * size_of(type), 0, 0, 0}}, CodeOrder::rows),
        type_(type) {}

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    if (rows.ld == dim()) {
      kernels::from_f32(rows.x, int64_t{rows.rows} * dim(), type_, block + format().offset(0, unit));
      return;
    }
    for (int r = 0; r < rows.rows; ++r) {
      kernels::from_f32(rows.x + r * rows.ld, dim(), type_, block + format().offset(0, unit + r));
    }
  }

  void score(const float* prep, int n, BlockView block, Range range, float* logit, int64_t ld,
             float* tile) const override {
    if (n > kDirectQueries) return TileCodec::score(prep, n, block, range, logit, ld, tile);
    kernels::score_rows(n, range.size(), dim(), prep, dim(), row(block.data, range.begin), type_, dim(),
                        row(block.next, range.begin), logit, ld);
  }
  void accumulate(const float* weight, int64_t ld, int n, BlockView block, Range range, float* acc,
                  float* tile) const override {
    if (n > kDirectQueries) return TileCodec::accumulate(weight, ld, n, block, range, acc, tile);
    kernels::accumulate_rows(n, range.size(), dim(), weight, ld, row(block.data, range.begin), type_, dim(),
                             row(block.next, range.begin), acc, dim());
  }

 private:
  const std::byte* row(const std::byte* block, int r) const { return block ? block + format().offset(0, r) : nullptr; }

  void unpack(const std::byte* block, Range units, float* tile, int64_t ld) const override {
    if (ld == dim()) {
      kernels::to_f32(block + format().offset(0, units.begin), int64_t{units.size()} * dim(), type_, tile);
      return;
    }
    for (int u = units.begin; u < units.end; ++u, tile += ld) {
      kernels::to_f32(block + format().offset(0, u), dim(), type_, tile);
    }
  }

  DType type_;
};

}  // namespace

std::shared_ptr<const Codec> raw_rows(DType type, int dim, int block_rows) {
  ArgumentCheck("raw_rows").range("dim", dim, 1, kMostDim).range("block_rows", block_rows, 1, kExactBlockRows).done();
  return std::make_shared<RawRows>(type, dim, block_rows);
}

}  // namespace veloxquant
