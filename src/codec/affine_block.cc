// Affine code along tokens: one group per channel and unit of `group` rows (keys of KIVI, arXiv:2402.02750).
// Block of u units: [u x (channel 0: group codes | channel 1 | ..) | u x (channel 0: zero, scale | channel 1 | ..)].
#include <algorithm>
#include <vector>

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
  AffineBlock(int dim, int bits, int group, CodecRole role)
      : TileCodec("affine" + std::to_string(bits), dim, make_format(dim, bits, group), CodeOrder::channels),
        bits_(bits),
        group_(group),
        run_bytes_(packed_bytes(Packing::planes, group, bits)) {
    const bool whole = group == 32 || group == 64 || group == 128;
    if (role.arithmetic == Arithmetic::float32 || role.side != Side::key || !whole) return;
    if (!TileGrid::exists(Side::key, bits, dim)) return;
    set_tiles(affine_tiles({Side::key, FieldOrder::affine, bits, dim}, group, role.arithmetic));
  }

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
      kernels::encode_affine_channels(rows.x + first * rows.ld, rows.ld, group_, dim(), bits_, codes, group_, params);
      codes += int64_t{dim()} * group_;
      params += int64_t{2} * dim();
    }
  }

  void encode_tiles(const RowsView& rows, uint8_t* codes, std::byte* parameters) const override {
    auto* params = reinterpret_cast<uint16_t*>(parameters);
    if (group_ > kTileRows) {  // 128 rows, two tiles
      std::vector<uint8_t> unit(static_cast<size_t>(group_) * static_cast<size_t>(dim()));
      encode_codes(rows, unit.data(), params);
      for (int half = 0; half < 2; ++half) {
        for (int c = 0; c < dim(); ++c, codes += kTileRows) {
          std::copy_n(unit.data() + c * group_ + half * kTileRows, kTileRows, codes);
        }
      }
      return;
    }
    for (int first = 0; first < rows.rows; first += group_, params += int64_t{2} * dim()) {
      uint8_t* own = codes + first / kTileRows * (int64_t{kTileRows} * dim()) + first % kTileRows;
      kernels::encode_affine_channels(rows.x + first * rows.ld, rows.ld, group_, dim(), bits_, own, kTileRows, params);
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

  void get_codes(const std::byte* block, Range rows, uint8_t* codes) const override {
    std::vector<uint8_t> run(static_cast<size_t>(group_));
    for_each_run(rows, [&](size_t packed, int c, Range in_unit, int at) {
      unpack_run(block + packed, group_, bits_, Packing::planes, run.data());
      for (int r = in_unit.begin; r < in_unit.end; ++r, ++at) codes[at * dim() + c] = run[static_cast<size_t>(r)];
    });
  }
  void put_codes(const uint8_t* codes, Range rows, std::byte* block) const override {
    std::vector<uint8_t> run(static_cast<size_t>(group_));
    for_each_run(rows, [&](size_t packed, int c, Range in_unit, int at) {
      // A unit longer than a tile is written a tile at a time.
      unpack_run(block + packed, group_, bits_, Packing::planes, run.data());
      for (int r = in_unit.begin; r < in_unit.end; ++r, ++at) run[static_cast<size_t>(r)] = codes[at * dim() + c];
      pack_run(run.data(), group_, bits_, Packing::planes, block + packed);
    });
  }
  /// visit(offset of the packed run, channel, rows inside the unit, first of them counted from rows.begin).
  template <class Visit>
  void for_each_run(Range rows, Visit&& visit) const {
    for (int row = rows.begin; row < rows.end;) {
      const int unit = row / group_, first = unit * group_, until = std::min(rows.end, first + group_);
      for (int c = 0; c < dim(); ++c) {
        visit(format().offset(0, unit) + static_cast<size_t>(c) * run_bytes_, c, Range{row - first, until - first},
              row - rows.begin);
      }
      row = until;
    }
  }

  // Runs of `dim` channels, one a unit: all scales, then all zeros.
  bool seal_parameters(const std::byte* plain, std::byte* sealed) const override {
    const auto* pairs = reinterpret_cast<const AffineParams*>(plain);
    auto* out = reinterpret_cast<uint16_t*>(sealed);
    for (int u = 0; u < format().units; ++u, pairs += dim()) {
      for (int p = 0; p < dim(); ++p, ++out) {
        const AffineParams& pair = pairs[parameter_order(Side::key, bits_, p)];
        if (is_wide(pair)) return false;
        out[0] = pair.scale;
        out[format().units * dim()] = pair.zero;
      }
    }
    return true;
  }
  void unseal_parameters(const std::byte* sealed, std::byte* plain) const override {
    auto* pairs = reinterpret_cast<AffineParams*>(plain);
    const auto* in = reinterpret_cast<const uint16_t*>(sealed);
    for (int u = 0; u < format().units; ++u, pairs += dim()) {
      for (int p = 0; p < dim(); ++p, ++in) {
        pairs[parameter_order(Side::key, bits_, p)] = {.zero = in[format().units * dim()], .scale = in[0]};
      }
    }
  }

  int bits_, group_;
  size_t run_bytes_;
};

}  // namespace

std::shared_ptr<const Codec> affine_block(int dim, int bits, int group, CodecRole role) {
  ArgumentCheck("affine_block")
      .range("dim", dim, 1, kMostDim)
      .range("bits", bits, 1, 8)
      .range("group", group, 1, kMostGroup)
      .done();
  return std::make_shared<AffineBlock>(dim, bits, group, role);
}

}  // namespace veloxquant
