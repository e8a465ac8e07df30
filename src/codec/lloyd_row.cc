// Unit-norm split, rotation, Lloyd-Max codes (TurboQuant, arXiv:2504.19874; a second stage refines the first):
//   n = fp16(|x|), u = (sqrt(dim) / n) * R x, index = number of boundaries below u_c,
//   decoded (n' / sqrt(dim)) * R^T level(index), n' = n or as the norm mode says.
// Block: [64 x ceil(dim * bits / 8) high codes | 64 x as many low codes, with two stages | 64 x fp16 n'], codes as
// little-endian bit strings.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "codec/codec_check.h"
#include "codec/lanes.h"
#include "codec/pack.h"
#include "codec/scalar_table.h"
#include "codec/tile_codec.h"
#include "core/half.h"
#include "kernels/kernels.h"
#include "veloxquant/codecs.h"

namespace veloxquant {
namespace {

constexpr float kLeastNorm = 1e-12f;  // shorter rows are stored as zero
constexpr float kLargestHalf = 65504;
constexpr size_t kComparedBounds = 15;  // up to here comparing with every boundary beats a binary search

/// Inner product by 16 interleaved partial sums added by one fixed tree: the bits do not depend on vector widths.
float inner_product(const float* a, const float* b, int n) {
  FloatLanes sum{};
  int i = 0;
  for (; i + static_cast<int>(kLanes) <= n; i += static_cast<int>(kLanes)) {
    for (size_t l = 0; l < kLanes; ++l) sum[l] += a[static_cast<size_t>(i) + l] * b[static_cast<size_t>(i) + l];
  }
  for (size_t l = 0; i < n; ++i, ++l) sum[l] += a[i] * b[i];
  return sum_lanes(sum);
}

/// Number of boundaries below each value, so that a value on a boundary takes the lower code.
CodeLanes count_below(const FloatLanes& value, const std::vector<float>& bounds) {
  CodeLanes code{};
  for (float bound : bounds) {
    for (size_t l = 0; l < kLanes; ++l) code[l] += value[l] > bound ? 1 : 0;
  }
  return code;
}

/// The same by halving; there are 2^k - 1 boundaries.
CodeLanes search_below(const FloatLanes& value, const std::vector<float>& bounds) {
  CodeLanes code{};
  for (int half = static_cast<int>(bounds.size() + 1) / 2; half > 0; half /= 2) {
    for (size_t l = 0; l < kLanes; ++l) {
      code[l] += value[l] > bounds[static_cast<size_t>(code[l] + half - 1)] ? half : 0;
    }
  }
  return code;
}

void quantise(const float* x, int n, const std::vector<float>& bounds, uint8_t* codes) {
  if (bounds.size() > kComparedBounds) {
    code_lanes(x, n, codes, [&](const FloatLanes& value) { return search_below(value, bounds); });
  } else {
    code_lanes(x, n, codes, [&](const FloatLanes& value) { return count_below(value, bounds); });
  }
}

double laplace_scale(const LloydRow& options) {
  if (options.laplace_scale > 0) return options.laplace_scale;
  return std::sqrt(3 * std::numbers::pi) / 2 * std::pow(4.0, -options.bits) / std::numbers::sqrt2;
}

std::shared_ptr<const OrthogonalMap> make_map(const LloydRow& options) {
  return options.rotation == Rotation::rht ? rht(options.dim, options.rounds, options.seed, options.stream)
                                           : haar(options.dim, options.seed, options.stream);
}

class LloydRowCodec final : public TileCodec {
 public:
  explicit LloydRowCodec(const LloydRow& options)
      : TileCodec("codebook" + std::to_string(options.stage2 == Stage2::none ? options.bits : 2 * options.bits),
                  options.dim, make_format(options), CodeOrder::rows, make_map(options)),
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
    std::copy(integer.begin(), integer.end(), levels.levels);
    set_tiles(row_factor_tiles({options.role.side, FieldOrder::codebook, bits, dim()}, levels,
                               static_cast<float>(tables_->table.unit / root_dim_), options.role.arithmetic));
  }

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    Work work(static_cast<size_t>(dim()));
    for (int r = 0; r < rows.rows; ++r, ++unit) {
      const uint16_t norm = encode_row(rows.x + r * rows.ld, &work);
      std::memcpy(block + format().offset(2, unit), &norm, sizeof norm);
      pack_run(work.high.data(), dim(), bits_, Packing::bit_string, block + format().offset(0, unit));
      if (two_stages_) pack_run(work.low.data(), dim(), bits_, Packing::bit_string, block + format().offset(1, unit));
    }
  }

 private:
  struct Work {
    explicit Work(size_t n) : u(n), residual(n), high(n), low(n) {}
    std::vector<float> u, residual;
    std::vector<uint8_t> high, low;
  };

  static BlockFormat make_format(const LloydRow& options) {
    const size_t row_bytes = packed_bytes(Packing::bit_string, options.dim, options.bits);
    return BlockFormat::of(
        1, {row_bytes, options.stage2 == Stage2::none ? size_t{0} : row_bytes, sizeof(uint16_t), size_t{0}});
  }

  /// Fills the codes of `work` and returns the norm to store.
  uint16_t encode_row(const float* x, Work* work) const {
    const float norm = std::sqrt(inner_product(x, x, dim()));
    const uint16_t stored = f16_from_f32(std::min(norm, kLargestHalf));
    const float rounded = f32_from_f16(stored);
    if (norm < kLeastNorm || rounded == 0) {
      std::fill(work->high.begin(), work->high.end(), uint8_t{0});
      std::fill(work->low.begin(), work->low.end(), uint8_t{0});
      return 0;
    }
    map()->forward(1, x, dim(), work->u.data(), dim());
    const float factor = static_cast<float>(root_dim_ / rounded);
    for (float& u : work->u) u *= factor;
    quantise_row(work);
    return norm_mode_ == NormMode::paper ? stored : corrected_norm(norm, rounded, work);
  }

  void quantise_row(Work* work) const {
    quantise(work->u.data(), dim(), tables_->bounds, work->high.data());
    if (!two_stages_) return;
    if (tables_->second.empty()) {  // one index, cut in halves
      for (size_t c = 0; c < work->high.size(); ++c) {
        work->low[c] = static_cast<uint8_t>(work->high[c] & ((1 << bits_) - 1));
        work->high[c] = static_cast<uint8_t>(work->high[c] >> bits_);
      }
      return;
    }
    for (size_t c = 0; c < work->u.size(); ++c) work->residual[c] = work->u[c] - tables_->first[work->high[c]];
    quantise(work->residual.data(), dim(), tables_->second, work->low.data());
  }

  /// Norm mode lsq: the factor of least squared error; unbiased: the one with <decoded, x> = |x|^2. Both count from the
  /// rounded norm that u was scaled with.
  uint16_t corrected_norm(float norm, float rounded, Work* work) const {
    for (size_t c = 0; c < work->u.size(); ++c) {
      const int index = two_stages_ ? work->high[c] << bits_ | work->low[c] : work->high[c];
      work->residual[c] = tables_->table.levels[static_cast<size_t>(index)];
    }
    const float along = inner_product(work->u.data(), work->residual.data(), dim());
    const float energy = inner_product(work->residual.data(), work->residual.data(), dim());
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
    std::vector<uint8_t> low(static_cast<size_t>(dim()));
    for (int r = rows.begin; r < rows.end; ++r, codes += dim()) {
      unpack_run(block + format().offset(0, r), dim(), bits_, Packing::bit_string, codes);
      if (!two_stages_) continue;
      unpack_run(block + format().offset(1, r), dim(), bits_, Packing::bit_string, low.data());
      for (size_t c = 0; c < low.size(); ++c) codes[c] = static_cast<uint8_t>(codes[c] << bits_ | low[c]);
    }
  }

  void put_codes(const uint8_t* codes, Range rows, std::byte* block) const override {
    std::vector<uint8_t> stream(static_cast<size_t>(dim()));
    for (int part = 0; part < (two_stages_ ? 2 : 1); ++part) {
      const int shift = two_stages_ && part == 0 ? bits_ : 0;
      const uint8_t* row = codes;
      for (int r = rows.begin; r < rows.end; ++r, row += dim()) {
        for (size_t c = 0; c < stream.size(); ++c) {
          stream[c] = static_cast<uint8_t>(row[c] >> shift & ((1 << bits_) - 1));
        }
        pack_run(stream.data(), dim(), bits_, Packing::bit_string, block + format().offset(part, r));
      }
    }
  }

  bool seal_parameters(const std::byte* block, std::byte* sealed) const override {
    std::memcpy(sealed, block + format().offset(2, 0), kTileRows * sizeof(uint16_t));
    return true;
  }
  void unseal_parameters(const std::byte* sealed, std::byte* block) const override {
    std::memcpy(block + format().offset(2, 0), sealed, kTileRows * sizeof(uint16_t));
  }

  int bits_;
  bool two_stages_;
  NormMode norm_mode_;
  double root_dim_;
  std::shared_ptr<const LloydTables> tables_;
};

}  // namespace

std::shared_ptr<const Codec> lloyd_row(const LloydRow& options) {
  ArgumentCheck("lloyd_row")
      .range("dim", options.dim, 1, kMostDim)
      .range("bits", options.bits, 1, options.stage2 == Stage2::none ? 8 : 4)
      .range("rounds", options.rounds, 1, 16)
      .done();
  return std::make_shared<LloydRowCodec>(options);
}

}  // namespace veloxquant
