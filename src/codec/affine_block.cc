// Affine code along tokens: one group per channel and unit of `group` rows (keys of KIVI, arXiv:2402.02750).
// Block of u units: [u x (channel 0: group codes | channel 1 | ..) | u x (channel 0: zero, scale | channel 1 | ..)].
#include <cstring>
#include <vector>

#include "codec/affine_code.h"
#include "codec/codec_check.h"
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
    std::vector<float> turned(static_cast<size_t>(dim()) * static_cast<size_t>(group_));
    std::vector<uint8_t> codes(static_cast<size_t>(group_));
    for (int first = 0; first + group_ <= rows.rows; first += group_, ++unit) {
      kernels::transpose(group_, dim(), rows.x + first * rows.ld, rows.ld, turned.data(), group_);
      std::byte* packed = block + format().offset(0, unit);
      std::byte* stored = block + format().offset(1, unit);
      for (int c = 0; c < dim(); ++c, packed += run_bytes_, stored += sizeof(AffineParams)) {
        const AffineParams params = affine_encode(turned.data() + int64_t{c} * group_, group_, bits_, codes.data());
        pack_run(codes.data(), group_, bits_, Packing::planes, packed);
        std::memcpy(stored, &params, sizeof params);
      }
    }
  }

 private:
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
