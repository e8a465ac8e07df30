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
  bool seal_parameters(const std::byte* block, std::byte* sealed) const override {
    const auto* pairs = reinterpret_cast<const AffineParams*>(block + format().offset(1, 0));
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
  void unseal_parameters(const std::byte* sealed, std::byte* block) const override {
    auto* pairs = reinterpret_cast<AffineParams*>(block + format().offset(1, 0));
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
