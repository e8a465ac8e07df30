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
  AffineRow(int dim, int bits, int group, CodecRole role)
      : TileCodec("affine" + std::to_string(bits), dim, make_format(dim, bits, group), CodeOrder::rows),
        bits_(bits),
        group_(group) {
    const bool whole = group % kTileRows == 0 || group == 32 || group == dim;
    if (role.arithmetic == Arithmetic::float32 || role.side != Side::value || !whole) return;
    if (!TileGrid::exists(Side::value, bits, dim)) return;
    set_tiles(affine_tiles({Side::value, FieldOrder::affine, bits, dim}, group, role.arithmetic));
  }

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

  void encode_tiles(const RowsView& rows, uint8_t* codes, std::byte* parameters) const override {
    encode_codes(rows, codes, reinterpret_cast<uint16_t*>(parameters));
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

  void get_codes(const std::byte* block, Range rows, uint8_t* codes) const override {
    for (int r = rows.begin; r < rows.end; ++r, codes += dim()) {
      unpack_run(block + format().offset(0, r), dim(), bits_, Packing::planes, codes);
    }
  }
  void put_codes(const uint8_t* codes, Range rows, std::byte* block) const override {
    for (int r = rows.begin; r < rows.end; ++r, codes += dim()) {
      pack_run(codes, dim(), bits_, Packing::planes, block + format().offset(0, r));
    }
  }

  // Runs of 64 rows, one a group: all scales, then all zeros.
  bool seal_parameters(const std::byte* plain, std::byte* sealed) const override {
    const auto* pairs = reinterpret_cast<const AffineParams*>(plain);
    auto* out = reinterpret_cast<uint16_t*>(sealed);
    const int groups = (dim() + group_ - 1) / group_;
    for (int g = 0; g < groups; ++g) {
      for (int p = 0; p < kTileRows; ++p, ++out) {
        const AffineParams& pair = pairs[parameter_order(Side::value, bits_, p) * groups + g];
        if (is_wide(pair)) return false;
        out[0] = pair.scale;
        out[groups * kTileRows] = pair.zero;
      }
    }
    return true;
  }
  void unseal_parameters(const std::byte* sealed, std::byte* plain) const override {
    auto* pairs = reinterpret_cast<AffineParams*>(plain);
    const auto* in = reinterpret_cast<const uint16_t*>(sealed);
    const int groups = (dim() + group_ - 1) / group_;
    for (int g = 0; g < groups; ++g) {
      for (int p = 0; p < kTileRows; ++p, ++in) {
        pairs[parameter_order(Side::value, bits_, p) * groups + g] = {.zero = in[groups * kTileRows], .scale = in[0]};
      }
    }
  }

  int bits_, group_;
};

}  // namespace

std::shared_ptr<const Codec> affine_row(int dim, int bits, int group, CodecRole role) {
  ArgumentCheck("affine_row")
      .range("dim", dim, 1, kMostDim)
      .range("bits", bits, 1, 8)
      .range("group", group, 1, kMostGroup)
      .done();
  return std::make_shared<AffineRow>(dim, bits, std::min(group, dim), role);
}

}  // namespace veloxquant
