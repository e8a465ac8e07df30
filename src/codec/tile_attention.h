// Attention of one sealed tile of 64 rows in integers (kernels/tile.h), for the two kinds of parameters there are:
// a factor a row (norms, int8 scales), and an affine pair per group.
//
// A sealed block is [parameters of the whole block][codes of tile 0][codes of tile 1]..; what a codec's scale and zero
// multiply is folded into the query or the weight first, so that codes meet integers only.
#pragma once

#include <memory>

#include "kernels/tile.h"
#include "veloxquant/codec.h"

namespace veloxquant {

/// One tile of a sealed block.
struct SealedTile {
  const std::byte* parameters;  ///< of the block
  const std::byte* codes;       ///< of the tile
  int index;                    ///< of the tile in the block
  const std::byte* ahead;       ///< codes of the tile that is read next, or null
};

class TileAttention {
 public:
  virtual ~TileAttention() = default;
  const TileGrid& grid() const { return grid_; }

  /// Floats that a prepared query has beside its `dim` channels, and how they are made.
  virtual int query_floats() const { return 0; }
  virtual void prepare(const float* q, float* prepared) const;
  /// logit[i * ld + row - rows.begin] of queries in the codec's frame; query i is at q + i * stride, its prepared part
  /// `dim` floats later. Key tiles only.
  virtual void score(const float* q, int64_t stride, int n, const SealedTile& tile, Range rows, float* logit,
                     int64_t ld, float* scratch) const;
  /// acc[i * dim + channel] += sum over rows of weight[i * ld + row - rows.begin] * v^. Value tiles only.
  virtual void accumulate(const float* weight, int64_t ld, int n, const SealedTile& tile, Range rows, float* acc,
                          float* scratch) const;
  virtual int scratch_floats() const = 0;

 protected:
  TileAttention(const TileGrid& grid, const kernels::TileLevels& levels, Arithmetic arithmetic);

  /// Queries whose planes stand in the scratch memory at once.
  static constexpr int kQueries = 8;

  int planes() const { return planes_; }
  bool fast() const { return planes_ == 1; }
  /// Operand bytes of all strips, and where those of a strip begin.
  const uint8_t* operands(const SealedTile& tile, float*& scratch) const;
  size_t operand_offset(const TileStrip& strip) const {
    return static_cast<size_t>(grid_.contraction_size()) * static_cast<size_t>(strip.first);
  }
  int operand_floats() const { return 16 * grid_.dim; }
  kernels::DotTerm term(float unit, float bias, int32_t sum) const { return {unit, bias, -shift_ * sum}; }

  TileGrid grid_;
  kernels::TileLevels levels_;
  const kernels::TileKernels& kernels_;
  int planes_;
  int32_t shift_;
  OperandOrder order_;
};

/// Rows with one fp16 factor each: decoded = factor * unit * level. Parameters: the rows' factors.
std::unique_ptr<const TileAttention> row_factor_tiles(const TileGrid& grid, const kernels::TileLevels& levels,
                                                      float unit, Arithmetic arithmetic);
/// Affine codes with fp16 pairs, decoded = zero + scale * code. Keys: a pair per channel and `group` rows; values: a
/// pair per row and `group` channels. Parameters: all scales, then all zeros; runs in the order of parameter_order().
std::unique_ptr<const TileAttention> affine_tiles(const TileGrid& grid, int group, Arithmetic arithmetic);

}  // namespace veloxquant
