// Affine code along channels: one group per `group` channels of a row (values of KIVI, arXiv:2402.02750).
// Block: [64 x (dim codes) | 64 x (group 0: zero, scale | group 1 | ..)].
#include <algorithm>
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

class AffineRow final : public TileCodec {
 public:
  AffineRow(int dim, int bits, int group)
      : TileCodec("affine" + std::to_string(bits), dim, make_format(dim, bits, group), CodeOrder::rows),
        bits_(bits),
        group_(group) {}

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    std::vector<uint8_t> codes(static_cast<size_t>(dim()));
    for (int r = 0; r < rows.rows; ++r, ++unit) {
      const float* x = rows.x + r * rows.ld;
      std::byte* stored = block + format().offset(1, unit);
      for (int c = 0; c < dim(); c += group_, stored += sizeof(AffineParams)) {
        const AffineParams params = affine_encode(x + c, std::min(group_, dim() - c), bits_, codes.data() + c);
        std::memcpy(stored, &params, sizeof params);
      }
      pack_run(codes.data(), dim(), bits_, Packing::planes, block + format().offset(0, unit));
    }
  }

 private:
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
