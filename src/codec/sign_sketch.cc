// Signs of projections on random directions (QJL, arXiv:2406.03482):
//   bit_i = <s_i, k> >= 0, i < m; n = fp16(|k|); estimate of <q, k>: scale * n * (2 * sum over bits 1 of z_i - sum of
//   z_i) with z_i = <s_i, q>, scale as sketch_scale() says.
// This is a 1-bit code with levels -1 and 1 in the frame of the m projections, and so is read as one. Block: [64 x
// ceil(m / 8) bits, as little-endian bit strings | 64 x fp16 n].
#include "codec/sign_sketch.h"

#include <algorithm>
#include <limits>

#include "codec/codec_check.h"
#include "codec/encode_scratch.h"
#include "codec/pack.h"
#include "codec/row_norms.h"
#include "kernels/kernels.h"

namespace veloxquant {
namespace {

constexpr float kLevels[] = {-1, 1};
constexpr int8_t kIntegerLevels[] = {-1, 1};
// An encoder counts bounds that lie below a number: this one does where the number is not negative.
constexpr float kSignBound = -std::numeric_limits<float>::denorm_min();

class SignSketchCodec final : public TileCodec {
 public:
  SignSketchCodec(std::shared_ptr<const LinearMap> projections, double scale, CodecRole role)
      : TileCodec(
            "sketch" + std::to_string(projections->frame_dim()), projections->dim(),
            BlockFormat::of(1, {packed_bytes(Packing::bit_string, projections->frame_dim(), 1), sizeof(uint16_t)}),
            CodeOrder::rows, projections),
        scale_(static_cast<float>(scale)) {
    if (role.arithmetic == Arithmetic::float32 || !TileGrid::exists(role.side, 1, frame_dim())) return;
    kernels::TileLevels levels{.kind = kernels::TileLevels::Kind::table};
    for (size_t i = 0; i < std::size(levels.levels); ++i) levels.levels[i] = kIntegerLevels[i % 2];
    set_tiles(row_factor_tiles({role.side, FieldOrder::codebook, 1, frame_dim()}, levels, scale_, role.arithmetic));
  }

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    const size_t size = static_cast<size_t>(std::min(rows.rows, kNormRows)) * static_cast<size_t>(frame_dim());
    uint8_t* codes = encode_scratch<uint8_t>(size);
    for (int first = 0; first < rows.rows; first += kNormRows, unit += kNormRows) {
      const int count = std::min(kNormRows, rows.rows - first);
      encode_rows({rows.x + first * rows.ld, rows.ld, count, rows.dim}, codes,
                  reinterpret_cast<uint16_t*>(block + format().offset(1, unit)));
      pack_runs(codes, count, frame_dim(), 1, Packing::bit_string, block + format().offset(0, unit));
    }
  }

 private:
  /// Up to kNormRows rows: bits[row][projection] and the norms to store.
  void encode_rows(const RowsView& rows, uint8_t* bits, uint16_t* stored) const {
    float* projected = encode_scratch<float>(static_cast<size_t>(rows.rows) * static_cast<size_t>(frame_dim()));
    map()->forward(rows.rows, rows.x, rows.ld, projected, frame_dim());
    float ones[kNormRows];
    std::fill_n(ones, kNormRows, 1.0f);
    kernels::encode_codebook(projected, frame_dim(), rows.rows, frame_dim(), ones, &kSignBound, 1, bits);
    const RowNorms norms(rows);
    std::copy_n(norms.stored, rows.rows, stored);
    for (int r = 0; r < rows.rows; ++r) {
      if (norms.is_zero(r)) std::fill_n(bits + int64_t{r} * frame_dim(), frame_dim(), uint8_t{1});
    }
  }

  void encode_tiles(const RowsView& rows, uint8_t* codes, std::byte* parameters) const override {
    for (int first = 0; first < rows.rows; first += kNormRows) {
      const int count = std::min(kNormRows, rows.rows - first);
      encode_rows({rows.x + first * rows.ld, rows.ld, count, rows.dim}, codes + int64_t{first} * frame_dim(),
                  reinterpret_cast<uint16_t*>(parameters) + first);
    }
  }

  void unpack(const std::byte* block, Range units, float* tile, int64_t ld) const override {
    kernels::decode_codebook(block + format().offset(0, units.begin), nullptr, format().part_bytes[0],
                             reinterpret_cast<const uint16_t*>(block + format().offset(1, units.begin)), scale_,
                             units.size(), frame_dim(), 1, {2, kLevels, kIntegerLevels, 1}, tile, ld);
  }

  float scale_;
};

}  // namespace

std::shared_ptr<const TileCodec> sign_sketch(std::shared_ptr<const LinearMap> map, double scale, CodecRole role) {
  return std::make_shared<SignSketchCodec>(std::move(map), scale, role);
}

std::shared_ptr<const Codec> sign_sketch(const SignSketch& options) {
  ArgumentCheck("sign_sketch")
      .range("dim", options.dim, 1, kMostDim)
      .range("rows", options.rows, 0, std::max(64, 16 * options.dim))
      .done();
  const int rows = options.rows == 0 ? options.dim : options.rows;
  return sign_sketch(sketch_map(options.dim, rows, options.kind, options.seed, options.stream),
                     sketch_scale(options.dim, rows, options.kind), options.role);
}

}  // namespace veloxquant
