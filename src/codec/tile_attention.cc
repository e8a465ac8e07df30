#include "codec/tile_attention.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "kernels/kernels.h"

namespace veloxquant {
namespace {

using kernels::DotTerm;
using kernels::TileDot;
using kernels::TileLevels;

constexpr int padded(int floats) { return (floats + 15) / 16 * 16; }

float* take(float*& scratch, int floats) { return std::exchange(scratch, scratch + padded(floats)); }

const uint16_t* halves(const std::byte* parameters) { return reinterpret_cast<const uint16_t*>(parameters); }

/// Up to kMost rows of weights of a whole tile: rows outside `rows` weigh nothing. Only parts are copied.
template <int kMost>
class WholeTile {
 public:
  WholeTile(const float* weight, int64_t stride, int n, Range rows) : x(weight), ld(stride) {
    if (rows.size() == kTileRows) return;
    std::fill_n(copy_, n * kTileRows, 0.0f);
    for (int i = 0; i < n; ++i) std::copy_n(weight + i * stride, rows.size(), copy_ + i * kTileRows + rows.begin);
    x = copy_;
    ld = kTileRows;
  }
  WholeTile(const WholeTile&) = delete;
  WholeTile& operator=(const WholeTile&) = delete;

  const float* x;
  int64_t ld;

 private:
  float copy_[kMost * kTileRows];
};

/// Logits of whole tiles go where they belong at once, those of a part by way of a buffer.
class LogitRows {
 public:
  LogitRows(Range rows, float* logit, int64_t ld, float* buffer)
      : rows_(rows), logit_(logit), ld_(ld), buffer_(rows.size() == kTileRows ? nullptr : buffer) {}
  void point(TileDot& dot, int first) const {
    dot.out = buffer_ ? buffer_ : logit_ + first * ld_;
    dot.ld = buffer_ ? kTileRows : ld_;
  }
  void done(int first, int n) const {
    for (int i = 0; buffer_ && i < n; ++i) {
      std::copy_n(buffer_ + i * kTileRows + rows_.begin, rows_.size(), logit_ + (first + i) * ld_);
    }
  }

 private:
  Range rows_;
  float* logit_;
  int64_t ld_;
  float* buffer_;
};

// --- a factor a row ------------------------------------------------------------------------------

class RowFactorTiles final : public TileAttention {
 public:
  RowFactorTiles(const TileGrid& grid, const TileLevels& levels, float unit, Arithmetic arithmetic)
      : TileAttention(grid, levels, arithmetic), unit_(unit) {}

  // Planes of the query, its unit and the sum of its integers.
  int query_floats() const override {
    return grid_.side == Side::key ? plane_floats(grid_.dim) + static_cast<int>(sizeof(Scale) / sizeof(float)) : 0;
  }

  void prepare(const float* q, float* prepared) const override {
    if (grid_.side == Side::value) return;
    Scale scale;
    scale.unit = unit_ * kernels_.quantise(q, grid_.dim, planes(), order_, bytes(prepared), &scale.sum);
    std::memcpy(prepared + plane_floats(grid_.dim), &scale, sizeof scale);
  }

  void score(const float* q, int64_t stride, int n, const SealedTile& tile, Range rows, float* logit, int64_t ld,
             float* scratch) const override {
    TileDot dot;
    dot.operand = operands(tile, scratch);
    float* factor = take(scratch, kTileRows);
    row_factors(tile, factor);
    const LogitRows out(rows, logit, ld, take(scratch, kQueries * kTileRows));
    std::array<DotTerm, kQueries> terms;
    dot.width = kTileRows;
    dot.steps = grid_.dim / 4;
    dot.query_stride = stride * static_cast<int64_t>(sizeof(float));
    dot.plane_stride = grid_.dim;
    dot.planes = planes();
    dot.terms = terms.data();
    dot.term_stride = 1;
    dot.factor = factor;
    for (int first = 0; first < n; first += kQueries) {
      dot.queries = std::min(kQueries, n - first);
      const float* prepared = q + first * stride + grid_.dim;
      dot.q = bytes(prepared);
      for (int i = 0; i < dot.queries; ++i) {
        Scale scale;
        std::memcpy(&scale, prepared + i * stride + plane_floats(grid_.dim), sizeof scale);
        terms[static_cast<size_t>(i)] = term(scale.unit, 0, scale.sum);
      }
      out.point(dot, first);
      kernels_.dot(dot);
      out.done(first, dot.queries);
    }
  }

  void accumulate(const float* weight, int64_t ld, int n, const SealedTile& tile, Range rows, float* acc,
                  float* scratch) const override {
    const uint8_t* operand = operands(tile, scratch);
    float* factor = take(scratch, kTileRows);
    row_factors(tile, factor);
    auto* planes_of_all = bytes(take(scratch, kQueries * plane_floats(kTileRows)));
    std::array<DotTerm, kQueries> terms;
    TileDot dot;
    dot.steps = kTileRows / 4;
    dot.q = planes_of_all;
    dot.query_stride = planes() * kTileRows;
    dot.plane_stride = kTileRows;
    dot.planes = planes();
    dot.terms = terms.data();
    dot.term_stride = 1;
    dot.ld = grid_.dim;
    dot.add = true;
    for (int first = 0; first < n; first += kQueries) {
      dot.queries = std::min(kQueries, n - first);
      const WholeTile<kQueries> weights(weight + first * ld, ld, dot.queries, rows);
      kernels_.fold({weights.x, weights.ld, dot.queries, planes_of_all, dot.query_stride, terms.data(), 1}, factor,
                    nullptr, kTileRows, planes(), order_, shift_);
      for (int i = 0; i < dot.queries; ++i) terms[static_cast<size_t>(i)].unit *= unit_;
      for_each_strip(grid_, [&](const TileStrip& strip) {
        dot.operand = operand + operand_offset(strip);
        dot.width = strip.width;
        dot.out = acc + int64_t{first} * grid_.dim + strip.first;
        kernels_.dot(dot);
      });
    }
  }

  int scratch_floats() const override {
    return operand_floats() + 64 + padded(kQueries * std::max(kTileRows, plane_floats(kTileRows)));
  }

 private:
  struct Scale {
    float unit;
    int32_t sum;
  };
  int plane_floats(int k) const { return planes() * k / 4; }
  static int8_t* bytes(float* x) { return reinterpret_cast<int8_t*>(x); }
  static const int8_t* bytes(const float* x) { return reinterpret_cast<const int8_t*>(x); }
  void row_factors(const SealedTile& tile, float* factor) const {
    kernels::to_f32(halves(tile.parameters) + tile.index * kTileRows, kTileRows, DType::f16, factor);
  }

  float unit_;
};

// --- affine pairs --------------------------------------------------------------------------------

/// What both sides share: `runs` of parameters of `run` numbers a tile, the planes of a query or weight in each class.
class AffineTiles : public TileAttention {
 protected:
  AffineTiles(const TileGrid& grid, int group, Arithmetic arithmetic)
      : TileAttention(grid, {}, arithmetic), group_(group), middle_(static_cast<float>(1 << (grid.bits - 1))) {
    for (size_t p = 0; p < order_.size(); ++p) {
      parameter_order_[p] = static_cast<uint8_t>(parameter_order(grid.side, grid.bits, static_cast<int>(p)));
    }
    natural_order_ = order_;
    // Planes are made from numbers that stand in the order of the parameters.
    OperandOrder position{};
    for (size_t p = 0; p < position.size(); ++p) position[parameter_order_[p]] = static_cast<uint8_t>(p);
    for (uint8_t& element : order_) element = position[element];
  }

  struct Parameters {
    const float *scale, *zero;
  };
  Parameters load(const SealedTile& tile, int first_run, int runs, int all_runs, int run, float middle,
                  float*& scratch) const {
    float* scale = take(scratch, runs * run);
    float* zero = take(scratch, runs * run);
    const uint16_t* scales = halves(tile.parameters) + first_run * run;
    kernels_.affine_parameters(scales, scales + all_runs * run, runs * run, middle, scale, zero);
    return {scale, zero};
  }

  /// From this many queries on fp32 is faster: folding parameters into a query costs as much as its dot products with
  /// the tile, expanding the codes once for all of them does not. The choice must not depend on the rows.
  static constexpr int kIntegerQueries = 8;
  float shift() const { return static_cast<float>(shift_); }
  int expanded_floats() const { return kTileRows * grid_.dim; }
  /// The tile in fp32, contraction index first; the zeros are those of operand byte 0. A class of 32 free indices, or a
  /// strip, is `run` parameters further.
  const float* expand(const uint8_t* operand, const Parameters& parameters, int64_t run, float*& scratch) const {
    float* out = take(scratch, expanded_floats());
    const int64_t ld = grid_.free_size();
    for_each_strip(grid_, [&](const TileStrip& strip) {
      const int64_t at = grid_.side == Side::key ? 0 : strip.first / group_ * run;
      kernels_.expand(operand + operand_offset(strip), strip.width, grid_.contraction_size() / 4, natural_order_,
                      order_, parameters.scale + at, parameters.zero + at, group_ == 32 ? run : 0, out + strip.first,
                      ld);
    });
    return out;
  }

  int group_;
  float middle_;
  OperandOrder parameter_order_{}, natural_order_{};
};

class AffineKeyTiles final : public AffineTiles {
 public:
  AffineKeyTiles(const TileGrid& grid, int group, Arithmetic arithmetic)
      : AffineTiles(grid, group, arithmetic), classes_(group < kTileRows ? kTileRows / group : 1) {}

  // The query in the order of the parameters.
  int query_floats() const override { return grid_.dim; }
  void prepare(const float* q, float* prepared) const override {
    for (int p = 0; p < grid_.dim; ++p) prepared[p] = q[p / 64 * 64 + parameter_order_[static_cast<size_t>(p % 64)]];
  }

  void score(const float* q, int64_t stride, int n, const SealedTile& tile, Range rows, float* logit, int64_t ld,
             float* scratch) const override {
    const int dim = grid_.dim;
    TileDot dot;
    dot.operand = operands(tile, scratch);
    const int units = 2 * kTileRows / group_, first_unit = tile.index * kTileRows / group_;
    const Parameters parameters =
        load(tile, first_unit, classes_, units, dim, n > kIntegerQueries ? middle_ - shift() : middle_, scratch);
    if (n > kIntegerQueries) {
      const float* rows_of_channels = expand(dot.operand, parameters, classes_ == 1 ? 0 : dim, scratch);
      for (int i = 0; i < n; ++i) std::fill_n(logit + i * ld, rows.size(), 0.0f);
      kernels::multiply_accumulate(n, rows.size(), dim, q, stride, 1, rows_of_channels + rows.begin, kTileRows, logit,
                                   ld);
      return;
    }
    float* scaled = take(scratch, dim);
    const LogitRows out(rows, logit, ld, take(scratch, kQueries * kTileRows));
    auto* planes_of_all = reinterpret_cast<int8_t*>(scratch);
    std::array<DotTerm, size_t{kQueries} * 2> terms;
    dot.width = kTileRows;
    dot.steps = dim / 4;
    dot.q = planes_of_all;
    dot.plane_stride = dim;
    dot.terms = terms.data();
    dot.term_stride = classes_;
    for (int first = 0; first < n; first += kQueries) {
      dot.queries = std::min(kQueries, n - first);
      const float* queries = q + first * stride + dim;
      dot.planes = fast() && even(queries, stride, dot.queries, parameters.scale, scaled) ? 1 : 2;
      dot.class_stride = classes_ == 1 ? 0 : dot.planes * dim;
      dot.query_stride = classes_ * dot.planes * dim;
      for (int c = 0; c < classes_; ++c) {
        kernels_.fold({queries, stride, dot.queries, planes_of_all + c * dot.planes * dim, dot.query_stride,
                       terms.data() + c, classes_},
                      parameters.scale + c * dim, parameters.zero + c * dim, dim, dot.planes, order_, shift_);
      }
      out.point(dot, first);
      kernels_.dot(dot);
      out.done(first, dot.queries);
    }
  }

  int scratch_floats() const override {
    const int in_integers = grid_.dim + kQueries * kTileRows + padded(kQueries * classes_ * 2 * grid_.dim / 4);
    return operand_floats() + 2 * classes_ * grid_.dim + std::max(in_integers, expanded_floats());
  }

 private:
  /// Whether 7 bits are enough for all of the scaled queries: real keys have channels whose scales are many times those
  /// of the others, and the rounding error of a query grows with its largest number. It may be about a hundredth of the
  /// codes' own error power, which falls by 4 with every bit.
  bool even(const float* queries, int64_t stride, int n, const float* scale, float* scaled) const {
    constexpr float kMostSquare = 17;  // of largest / rms, at 4 bits
    const float most = kMostSquare * static_cast<float>(1 << (2 * std::max(0, 4 - grid_.bits)));
    for (int i = 0; i < n; ++i) {
      for (int c = 0; c < classes_; ++c) {
        kernels_.apply(queries + i * stride, scale + c * grid_.dim, nullptr, grid_.dim, scaled);
        if (!(kernels_.peak(scaled, grid_.dim) <= most)) return false;
      }
    }
    return true;
  }

  int classes_;  // of 32 rows, or one
};

class AffineValueTiles final : public AffineTiles {
 public:
  AffineValueTiles(const TileGrid& grid, int group, Arithmetic arithmetic)
      : AffineTiles(grid, group, arithmetic), groups_((grid.dim + group - 1) / group) {}

  void accumulate(const float* weight, int64_t ld, int n, const SealedTile& tile, Range rows, float* acc,
                  float* scratch) const override {
    const uint8_t* operand = operands(tile, scratch);
    const Parameters parameters =
        load(tile, 0, groups_, groups_, kTileRows, n > kIntegerQueries ? middle_ - shift() : middle_, scratch);
    if (n > kIntegerQueries) {
      const float* by_row = expand(operand, parameters, kTileRows, scratch);
      kernels::multiply_accumulate(n, grid_.dim, rows.size(), weight, ld, 1, by_row + rows.begin * grid_.dim, grid_.dim,
                                   acc, grid_.dim);
      return;
    }
    auto* planes_of_all = reinterpret_cast<int8_t*>(take(scratch, kQueries * groups_ * planes() * kTileRows / 4));
    auto* terms = reinterpret_cast<DotTerm*>(scratch);
    const int64_t class_bytes = int64_t{planes()} * kTileRows;
    TileDot dot;
    dot.steps = kTileRows / 4;
    dot.class_stride = group_ == 32 ? class_bytes : 0;
    dot.query_stride = groups_ * class_bytes;
    dot.plane_stride = kTileRows;
    dot.planes = planes();
    dot.term_stride = groups_;
    dot.ld = grid_.dim;
    dot.add = true;
    for (int first = 0; first < n; first += kQueries) {
      dot.queries = std::min(kQueries, n - first);
      const WholeTile<kQueries> weights(weight + first * ld, ld, dot.queries, rows);
      float ordered[kQueries * kTileRows];
      for (int i = 0; i < dot.queries; ++i) {
        kernels_.permute(weights.x + i * weights.ld, parameter_order_, ordered + i * kTileRows);
      }
      for (int g = 0; g < groups_; ++g) {
        kernels_.fold(
            {ordered, kTileRows, dot.queries, planes_of_all + g * class_bytes, dot.query_stride, terms + g, groups_},
            parameters.scale + g * kTileRows, parameters.zero + g * kTileRows, kTileRows, planes(), order_, shift_);
      }
      for_each_strip(grid_, [&](const TileStrip& strip) {
        const int g = strip.first / group_;
        dot.operand = operand + operand_offset(strip);
        dot.width = strip.width;
        dot.q = planes_of_all + g * class_bytes;
        dot.terms = terms + g;
        dot.out = acc + int64_t{first} * grid_.dim + strip.first;
        kernels_.dot(dot);
      });
    }
  }

  int scratch_floats() const override {
    static_assert(sizeof(DotTerm) == 3 * sizeof(float));
    const int in_integers = padded(kQueries * groups_ * planes() * kTileRows / 4) + padded(kQueries * groups_ * 3);
    return operand_floats() + 2 * groups_ * kTileRows + std::max(in_integers, expanded_floats());
  }

 private:
  int groups_;
};

}  // namespace

TileAttention::TileAttention(const TileGrid& grid, const kernels::TileLevels& levels, Arithmetic arithmetic)
    : grid_(grid),
      levels_(levels),
      kernels_(kernels::tile_kernels()),
      planes_(arithmetic == Arithmetic::int8 && grid.bits < 8 ? 1 : 2),
      shift_(kernels::operand_shift(kernels_, levels, grid.bits)),
      order_(operand_order(grid)) {}

void TileAttention::prepare(const float*, float*) const {}

void TileAttention::score(const float*, int64_t, int, const SealedTile&, Range, float*, int64_t, float*) const {
  VQ_CHECK(false);  // not a key tile
}

void TileAttention::accumulate(const float*, int64_t, int, const SealedTile&, Range, float*, float*) const {
  VQ_CHECK(false);  // not a value tile
}

const uint8_t* TileAttention::operands(const SealedTile& tile, float*& scratch) const {
  auto* out = reinterpret_cast<uint8_t*>(take(scratch, operand_floats()));
  for_each_strip(grid_, [&](const TileStrip& strip) {
    kernels_.operand(grid_, strip, levels_, tile.codes + strip.offset, tile.ahead ? tile.ahead + strip.offset : nullptr,
                     out + operand_offset(strip));
  });
  return out;
}

std::unique_ptr<const TileAttention> row_factor_tiles(const TileGrid& grid, const TileLevels& levels, float unit,
                                                      Arithmetic arithmetic) {
  return std::make_unique<RowFactorTiles>(grid, levels, unit, arithmetic);
}

std::unique_ptr<const TileAttention> affine_tiles(const TileGrid& grid, int group, Arithmetic arithmetic) {
  if (grid.side == Side::key) return std::make_unique<AffineKeyTiles>(grid, group, arithmetic);
  return std::make_unique<AffineValueTiles>(grid, group, arithmetic);
}

}  // namespace veloxquant
