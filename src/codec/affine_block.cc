// Affine code along tokens: one group per channel and unit of `group` rows (keys of KIVI, arXiv:2402.02750).
// Block of u units: [u x (channel 0: group codes | channel 1 | ..) | u x (channel 0: zero, scale | channel 1 | ..)].
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

class AffineBlock final : public TileCodec {
 public:
  AffineBlock(int dim, int bits, int group)
      : TileCodec("affine" + std::to_string(bits), dim, make_format(dim, bits, group), CodeOrder::channels),
        bits_(bits),
        group_(group),
        run_bytes_(packed_bytes(Packing::planes, group, bits)) {}

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    const int units = rows.rows / group_, step = std::max(1, kEncodedRows / group_);
    uint8_t* codes = encode_scratch<uint8_t>(static_cast<size_t>(std::min(units, step)) * static_cast<size_t>(dim()) *
                                             static_cast<size_t>(group_));
    for (int first = 0; first < units; first += step) {
      const int count = std::min(step, units - first);
      encode_codes({rows.x + int64_t{first} * group_ * rows.ld, rows.ld, count * group_, rows.dim}, codes,
                   reinterpret_cast<uint16_t*>(block + format().offset(1, unit + first)));
      pack_runs(codes, count * dim(), group_, bits_, Packing::planes, block + format().offset(0, unit + first));
    }
  }

 private:
  /// Whole units: codes[unit][channel][row], params[unit][channel][zero, scale].
  void encode_codes(const RowsView& rows, uint8_t* codes, uint16_t* params) const {
    for (int first = 0; first + group_ <= rows.rows; first += group_) {
      kernels::encode_affine_channels(rows.x + first * rows.ld, rows.ld, group_, dim(), bits_, codes, params);
      codes += int64_t{dim()} * group_;
      params += int64_t{2} * dim();
    }
  }

  static BlockFormat make_format(int dim, int bits, int group) {
    const size_t channels = static_cast<size_t>(dim);
    return BlockFormat::of(
        group, {channels * packed_bytes(Packing::planes, group, bits), channels * sizeof(AffineParams), 0, 0});
  }

  void unpack(const std::byte* block, Range units, float* tile, int64_t ld) const override {
    for (int u = units.begin; u < units.end; ++u, tile += group_) {
      kernels::decode_affine(block + format().offset(0, u), run_bytes_,
                             reinterpret_cast<const uint16_t*>(block + format().offset(1, u)), dim(), group_, group_,
                             bits_, tile, ld);
    }
  }

  int bits_, group_;
  size_t run_bytes_;
};

}  // namespace

std::shared_ptr<const Codec> affine_block(int dim, int bits, int group) {
  ArgumentCheck("affine_block")
      .range("dim", dim, 1, kMostDim)
      .range("bits", bits, 1, 8)
      .range("group", group, 1, kMostGroup)
      .done();
  return std::make_shared<AffineBlock>(dim, bits, group);
}

}  // namespace veloxquant
