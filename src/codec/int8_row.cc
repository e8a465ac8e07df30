// int8 rows with one fp16 scale: s = fp16(max(max|x| / 127, 2^-24)), made one fp16 step larger when max|x| / s would
// pass 127; code = round(x / s). Decoded: s * code. Block: [64 x dim codes | 64 x scale].
#include "codec/codec_check.h"
#include "codec/tile_codec.h"
#include "kernels/kernels.h"
#include "veloxquant/codecs.h"

namespace veloxquant {
namespace {

class Int8Row final : public TileCodec {
 public:
  Int8Row(int dim, CodecRole role)
      : TileCodec("int8", dim, BlockFormat::of(1, {static_cast<size_t>(dim), sizeof(uint16_t), 0, 0}),
                  CodeOrder::rows) {
    if (role.arithmetic == Arithmetic::float32 || !TileGrid::exists(role.side, 8, dim)) return;
    set_tiles(row_factor_tiles({role.side, FieldOrder::codebook, 8, dim}, {.kind = kernels::TileLevels::Kind::integer},
                               1, role.arithmetic));
  }

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    encode_codes(rows, reinterpret_cast<uint8_t*>(block + format().offset(0, unit)),
                 reinterpret_cast<uint16_t*>(block + format().offset(1, unit)));
  }

 private:
  /// codes[row][channel], which is their packed form; one scale a row.
  void encode_codes(const RowsView& rows, uint8_t* codes, uint16_t* scales) const {
    kernels::encode_int8(rows.x, rows.ld, rows.rows, dim(), codes, scales);
  }

  void encode_tiles(const RowsView& rows, uint8_t* codes, std::byte* parameters) const override {
    encode_codes(rows, codes, reinterpret_cast<uint16_t*>(parameters));
  }

  void unpack(const std::byte* block, Range units, float* tile, int64_t ld) const override {
    kernels::decode_int8(block + format().offset(0, units.begin),
                         reinterpret_cast<const uint16_t*>(block + format().offset(1, units.begin)), units.size(),
                         dim(), tile, ld);
  }
};

}  // namespace

std::shared_ptr<const Codec> int8_row(int dim, CodecRole role) {
  ArgumentCheck("int8_row").range("dim", dim, 1, kMostDim).done();
  return std::make_shared<Int8Row>(dim, role);
}

}  // namespace veloxquant
