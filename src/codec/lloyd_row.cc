// Unit-norm split, rotation, Lloyd-Max codes (TurboQuant, arXiv:2504.19874; a second stage refines the first):
//   n = fp16(|x|), u = (sqrt(dim) / n) * R x, index = number of boundaries below u_c,
//   decoded (n' / sqrt(dim)) * R^T level(index), n' = n or as the norm mode says.
// Block: [64 x ceil(dim * bits / 8) high codes | 64 x as many low codes, with two stages | 64 x fp16 n'], codes as
// little-endian bit strings.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "codec/codec_check.h"
#include "codec/encode_scratch.h"
#include "codec/lloyd_row.h"
#include "codec/pack.h"
#include "codec/row_norms.h"
#include "codec/scalar_table.h"
#include "core/half.h"
#include "kernels/kernels.h"
#include "veloxquant/codecs.h"

namespace veloxquant {
namespace {

double laplace_scale(const LloydRow& options) {
  if (options.laplace_scale > 0) return options.laplace_scale;
  return std::sqrt(3 * std::numbers::pi) / 2 * std::pow(4.0, -options.bits) / std::numbers::sqrt2;
}

class LloydRowCodec final : public TileCodec {
 public:
  LloydRowCodec(const LloydRow& options, std::shared_ptr<const OrthogonalMap> rotation)
      : TileCodec("codebook" + std::to_string(options.stage2 == Stage2::none ? options.bits : 2 * options.bits),
                  options.dim, make_format(options), CodeOrder::rows, std::move(rotation)),
        bits_(options.bits),
        two_stages_(options.stage2 != Stage2::none),
        norm_mode_(options.norm),
        root_dim_(std::sqrt(static_cast<double>(options.dim))),
        tables_(lloyd_tables(options.dim, options.bits, options.stage2, laplace_scale(options))) {
    const int bits = index_bits();
    const std::vector<int8_t>& integer = tables_->table.integer;
    if (options.role.arithmetic == Arithmetic::float32 || integer.empty()) return;
    if (!TileGrid::exists(options.role.side, bits, dim())) return;
    kernels::TileLevels levels{.kind = kernels::TileLevels::Kind::table};
    for (size_t i = 0; i < std::size(levels.levels); ++i) levels.levels[i] = integer[i % integer.size()];
    set_tiles(row_factor_tiles({options.role.side, FieldOrder::codebook, bits, dim()}, levels,
                               static_cast<float>(tables_->table.unit / root_dim_), options.role.arithmetic));
  }

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    uint8_t* codes =
        encode_scratch<uint8_t>(static_cast<size_t>(std::min(rows.rows, kEncodedRows)) * static_cast<size_t>(dim()));
    for (int first = 0; first < rows.rows; first += kEncodedRows, unit += kEncodedRows) {
      const int count = std::min(kEncodedRows, rows.rows - first);
      encode_codes({rows.x + first * rows.ld, rows.ld, count, rows.dim}, codes,
                   reinterpret_cast<uint16_t*>(block + format().offset(2, unit)));
      pack(codes, {unit, unit + count}, block);
    }
  }

 private:
  void pack(const uint8_t* codes, Range rows, std::byte* block) const {
    const int shift = two_stages_ ? bits_ : 0;
    pack_runs(codes, rows.size(), dim(), bits_, Packing::bit_string, block + format().offset(0, rows.begin), shift);
    if (!two_stages_) return;
    pack_runs(codes, rows.size(), dim(), bits_, Packing::bit_string, block + format().offset(1, rows.begin));
  }

  static BlockFormat make_format(const LloydRow& options) {
    const size_t row_bytes = packed_bytes(Packing::bit_string, options.dim, options.bits);
    return BlockFormat::of(
        1, {row_bytes, options.stage2 == Stage2::none ? size_t{0} : row_bytes, sizeof(uint16_t), size_t{0}});
  }

  /// codes[row][channel], both stages in one index (high << bits | low), and norms[row] to store.
  void encode_codes(const RowsView& rows, uint8_t* codes, uint16_t* norms) const {
    for (int first = 0; first < rows.rows; first += kNormRows) {
      const int count = std::min(kNormRows, rows.rows - first);
      encode_rows({rows.x + first * rows.ld, rows.ld, count, rows.dim}, codes + int64_t{first} * dim(), norms + first);
    }
  }

  void encode_tiles(const RowsView& rows, uint8_t* codes, std::byte* parameters) const override {
    encode_codes(rows, codes, reinterpret_cast<uint16_t*>(parameters));
  }

  /// Up to kNormRows rows: what stands in fp32 stays in the nearest cache.
  void encode_rows(const RowsView& rows, uint8_t* codes, uint16_t* stored) const {
    float* turned = encode_scratch<float>(static_cast<size_t>(rows.rows) * static_cast<size_t>(dim()));
    const RowNorms norms(rows);
    map()->forward(rows.rows, rows.x, rows.ld, turned, dim());
    quantise(rows.rows, turned, norms, codes);
    for (int r = 0; r < rows.rows; ++r) {
      uint8_t* row_codes = codes + int64_t{r} * dim();
      stored[r] = norms.stored[r];
      if (norms.is_zero(r)) {
        std::fill_n(row_codes, dim(), uint8_t{0});
      } else if (norm_mode_ != NormMode::paper) {
        stored[r] = corrected_norm(norms.exact[r], norms.rounded[r], turned + int64_t{r} * dim(), row_codes);
      }
    }
  }

  /// Codes the rows times sqrt(dim) / rounded norm; what comes of rows that are stored as zero does not matter.
  void quantise(int rows, float* u, const RowNorms& norms, uint8_t* codes) const {
    float factors[kNormRows];
    for (int r = 0; r < rows; ++r) factors[r] = static_cast<float>(root_dim_ / norms.rounded[r]);
    const bool one_index = tables_->second.empty();
    const int bits = two_stages_ && one_index ? 2 * bits_ : bits_;
    kernels::encode_codebook(u, dim(), rows, dim(), factors, tables_->bounds.data(), bits, codes);
    if (one_index) return;
    kernels::encode_residual(u, dim(), rows, dim(), tables_->first.data(), tables_->second.data(), bits_, codes);
  }

  /// Norm mode lsq: the factor of least squared error; unbiased: the one with <decoded, x> = |x|^2. Both count from the
  /// rounded norm that u was scaled with.
  uint16_t corrected_norm(float norm, float rounded, const float* u, const uint8_t* codes) const {
    thread_local std::vector<float> levels;
    levels.resize(static_cast<size_t>(dim()));
    for (size_t c = 0; c < levels.size(); ++c) levels[c] = tables_->table.levels[codes[c]];
    float along = 0, energy = 0;
    kernels::inner_products(u, dim(), levels.data(), dim(), 1, dim(), &along);
    kernels::inner_products(levels.data(), dim(), levels.data(), dim(), 1, dim(), &energy);
    const float corrected = norm_mode_ == NormMode::lsq ? rounded * (along / energy)
                                                        : norm * (norm / rounded) * (static_cast<float>(dim()) / along);
    return f16_from_f32(corrected > 0 && corrected <= kLargestHalf ? corrected : std::min(norm, kLargestHalf));
  }

  void unpack(const std::byte* block, Range units, float* tile, int64_t ld) const override {
    const std::byte* low = two_stages_ ? block + format().offset(1, units.begin) : nullptr;
    kernels::decode_codebook(block + format().offset(0, units.begin), low, format().part_bytes[0],
                             reinterpret_cast<const uint16_t*>(block + format().offset(2, units.begin)),
                             static_cast<float>(1 / root_dim_), units.size(), dim(), bits_, tables_->table.book(), tile,
                             ld);
  }

  int index_bits() const { return two_stages_ ? 2 * bits_ : bits_; }

  // In layout 1 the two streams of a two-stage code are one index.
  void get_codes(const std::byte* block, Range rows, uint8_t* codes) const override {
    if (!two_stages_) return TileCodec::get_codes(block, rows, codes);
    std::vector<uint8_t> low(static_cast<size_t>(dim()));
    for (int r = rows.begin; r < rows.end; ++r, codes += dim()) {
      unpack_run(block + format().offset(0, r), dim(), bits_, Packing::bit_string, codes);
      unpack_run(block + format().offset(1, r), dim(), bits_, Packing::bit_string, low.data());
      for (size_t c = 0; c < low.size(); ++c) codes[c] = static_cast<uint8_t>(codes[c] << bits_ | low[c]);
    }
  }

  void put_codes(const uint8_t* codes, Range rows, std::byte* block) const override { pack(codes, rows, block); }

  int bits_;
  bool two_stages_;
  NormMode norm_mode_;
  double root_dim_;
  std::shared_ptr<const LloydTables> tables_;
};

}  // namespace

std::shared_ptr<const OrthogonalMap> rotation_map(const LloydRow& options) {
  return options.rotation == Rotation::rht ? rht(options.dim, options.rounds, options.seed, options.stream)
                                           : haar(options.dim, options.seed, options.stream);
}

std::shared_ptr<const TileCodec> lloyd_row(const LloydRow& options, std::shared_ptr<const OrthogonalMap> rotation) {
  return std::make_shared<LloydRowCodec>(options, std::move(rotation));
}

std::shared_ptr<const Codec> lloyd_row(const LloydRow& options) {
  ArgumentCheck("lloyd_row")
      .range("dim", options.dim, 1, kMostDim)
      .range("bits", options.bits, 1, options.stage2 == Stage2::none ? 8 : 4)
      .range("rounds", options.rounds, 1, 16)
      .done();
  return lloyd_row(options, rotation_map(options));
}

}  // namespace veloxquant
