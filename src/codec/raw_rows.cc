// Exact rows in their element type. Block: [row 0 | row 1 | ..], dim elements a row.
#include "codec/codec_check.h"
#include "codec/tile_codec.h"
#include "kernels/kernels.h"
#include "veloxquant/codecs.h"

namespace veloxquant {
namespace {

class RawRows final : public TileCodec {
 public:
  RawRows(DType type, int dim)
      : TileCodec(std::string(to_string(type)), dim,
                  BlockFormat::of(1, {static_cast<size_t>(dim) * size_of(type), 0, 0, 0}), CodeOrder::rows),
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

 private:
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

std::shared_ptr<const Codec> raw_rows(DType type, int dim) {
  ArgumentCheck("raw_rows").range("dim", dim, 1, kMostDim).done();
  return std::make_shared<RawRows>(type, dim);
}

}  // namespace veloxquant
