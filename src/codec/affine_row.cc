// Affine code along channels: one group per `group` channels of a row (values of KIVI, arXiv:2402.02750).
// Block: [64 x (dim codes) | 64 x (group 0: zero, scale | group 1 | ..)].
#include <algorithm>

#include "codec/affine_code.h"
#include "codec/codec_check.h"
#include "codec/encode_scratch.h"
#include "codec/pack.h"
#include "codec/tile_codec.h"
#include "kernels/kernels.h"
#include "veloxquant/codecs.h"

namespace veloxquant {
namespace {

class AffineRow final : public TileCodec {
 public:
  AffineRow(int dim, int bits, int group)
      : TileCodec("affine" + std::to_string(bits), dim, make_format(dim, bits, group), CodeOrder::rows),
        bits_(bits),
        group_(group) {}

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    uint8_t* codes =
        encode_scratch<uint8_t>(static_cast<size_t>(std::min(rows.rows, kEncodedRows)) * static_cast<size_t>(dim()));
    for (int first = 0; first < rows.rows; first += kEncodedRows) {
      const int count = std::min(kEncodedRows, rows.rows - first);
      encode_codes({rows.x + first * rows.ld, rows.ld, count, rows.dim}, codes,
                   reinterpret_cast<uint16_t*>(block + format().offset(1, unit + first)));
      pack_runs(codes, count, dim(), bits_, Packing::planes, block + format().offset(0, unit + first));
    }
  }

 private:
  /// codes[row][channel], params[row][group][zero, scale].
  void encode_codes(const RowsView& rows, uint8_t* codes, uint16_t* params) const {
    kernels::encode_affine_rows(rows.x, rows.ld, rows.rows, dim(), group_, bits_, codes, params);
  }

  static BlockFormat make_format(int dim, int bits, int group) {
    const size_t groups = static_cast<size_t>((dim + group - 1) / group);
    return BlockFormat::of(1, {packed_bytes(Packing::planes, dim, bits), groups * sizeof(AffineParams), 0, 0});
  }

  void unpack(const std::byte* block, Range units, float* tile, int64_t ld) const override {
    kernels::decode_affine(block + format().offset(0, units.begin), format().part_bytes[0],
                           reinterpret_cast<const uint16_t*>(block + format().offset(1, units.begin)), units.size(),
                           dim(), group_, bits_, tile, ld);
  }

  int bits_, group_;
};

}  // namespace

std::shared_ptr<const Codec> affine_row(int dim, int bits, int group) {
  ArgumentCheck("affine_row")
      .range("dim", dim, 1, kMostDim)
      .range("bits", bits, 1, 8)
      .range("group", group, 1, kMostGroup)
      .done();
  return std::make_shared<AffineRow>(dim, bits, std::min(group, dim));
}

}  // namespace veloxquant
