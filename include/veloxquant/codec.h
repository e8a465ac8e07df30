// A codec turns rows of one lane (one head of one sequence and layer) into packed bytes and computes
// attention on them. It is stateless after construction and shared by all sequences of a layer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "veloxquant/types.h"

namespace veloxquant {

/// Geometry of one storage block of one side. A block has room for `units` units of `unit_rows` rows; its bytes are up
/// to eight parts, each an array over units that begins on an even byte, so that 16-bit numbers are aligned.
struct BlockFormat {
  static constexpr int kParts = 8;
  using PartBytes = std::array<size_t, kParts>;

  int unit_rows = 1;       ///< rows that are encoded together (1: any row by itself)
  int units = 64;          ///< capacity
  PartBytes part_bytes{};  ///< bytes of one unit in each part; unused parts are 0

  int capacity_rows() const { return unit_rows * units; }
  size_t unit_bytes() const { return std::accumulate(part_bytes.begin(), part_bytes.end(), size_t{0}); }
  size_t block_bytes() const { return offset(kParts, 0); }
  /// Offset of part `part` of unit `unit` from the start of the block.
  size_t offset(int part, int unit) const {
    size_t start = 0;
    for (size_t p = 0; p < static_cast<size_t>(part); ++p) {
      start = (start + static_cast<size_t>(units) * part_bytes[p] + 1) / 2 * 2;
    }
    return part == kParts ? start : start + static_cast<size_t>(unit) * part_bytes[static_cast<size_t>(part)];
  }
  /// Geometry of units of `unit_rows` rows: blocks of about 128 rows, or of 64 single rows.
  static BlockFormat of(int unit_rows, PartBytes part_bytes) {
    return {unit_rows, unit_rows == 1 ? 64 : (unit_rows >= 128 ? 1 : 128 / unit_rows), part_bytes};
  }
};

/// Bytes of a storage block and the order of its content: 0 the logical order that encode writes, 1 the tiles that the
/// fast kernels read (core/tile_layout.h). Equal content needs the same bytes in both.
struct BlockView {
  const std::byte* data = nullptr;
  uint8_t layout = 0;
  const std::byte* next = nullptr;  ///< the block of this codec that will be read after it, to be fetched meanwhile
  BlockView(const std::byte* bytes = nullptr, uint8_t order = 0) : data(bytes), layout(order) {}
};

/// What a codec will be used for. Blocks of a codec that attends in fp32 stay in layout 0.
struct CodecRole {
  Side side = Side::key;
  Arithmetic arithmetic = Arithmetic::two_term;
};

/// Per-query working sizes in floats; the engine provides the memory.
struct CodecFloats {
  int query = 0;     ///< of a prepared query row
  int acc = 0;       ///< of an accumulator row
  int64_t tile = 0;  ///< scratch of one score or accumulate call, whatever the number of queries
};

class Codec {
 public:
  virtual ~Codec() = default;

  virtual std::string name() const = 0;  ///< e.g. "affine2", "codebook4", "f16"
  virtual int dim() const = 0;
  virtual const BlockFormat& format() const = 0;
  virtual CodecFloats floats() const = 0;
  /// The method's byte formula for `rows` rows (whole units).
  size_t bytes(int rows) const { return static_cast<size_t>(rows / format().unit_rows) * format().unit_bytes(); }

  /// Encodes whole units from unit `unit` of the block, in layout 0, on. Equal rows give equal bytes on every
  /// instruction set.
  virtual void encode(const RowsView& rows, std::byte* block, int unit) const = 0;
  /// Encodes rows that fill a block straight into layout 1, with the bytes that encode and seal would give. False, and
  /// nothing promised of the block, where seal would not or there is no quicker way.
  virtual bool encode_block(const RowsView&, std::byte*) const { return false; }
  /// Brings a full block from layout 0 to layout 1 in place. False, and nothing done, where this codec or this content
  /// has no layout 1.
  virtual bool seal(std::byte*) const { return false; }
  /// Brings it back.
  virtual void unseal(std::byte*) const {}
  /// Rows [range) of the block as they arrived, up to the codec's error: out[row - range.begin][dim].
  virtual void decode(BlockView block, Range range, float* out, int64_t ld) const = 0;

  /// q[n][dim] -> prep[n][floats().query], once per call: rotations fold into the query here.
  virtual void prepare_query(const float* q, int n, float* prep) const = 0;
  /// logit[n][range.size()] = q . k^ of rows [range), before soft-cap and mask; `ld` strides the n rows.
  virtual void score(const float* prep, int n, BlockView block, Range range, float* logit, int64_t ld,
                     float* tile) const = 0;
  /// acc[n][floats().acc] += sum over rows of weight[n][row] * v^; rows in ascending order, so that cutting a range in
  /// two - at a whole tile of 64 rows in layout 1 - changes no bit.
  virtual void accumulate(const float* weight, int64_t ld, int n, BlockView block, Range range, float* acc,
                          float* tile) const = 0;
  /// out[n][dim] += what acc stands for, once per call.
  virtual void finish(const float* acc, int n, float* out) const = 0;

  // A codec may need something of the rows that it will code. It is made unfitted, with its final format; the codec
  // that encodes is the one that fit makes from the first rows of a stream, once, before any of them is coded.
  /// How many rows that takes; 0: nothing is fitted.
  virtual int fit_rows() const { return 0; }
  /// The codec for the stream that begins with these fit_rows() rows.
  virtual std::shared_ptr<const Codec> fit(const RowsView&) const { return nullptr; }
  /// What was fitted, and the way back from it to the same codec. Throws FormatError where the bytes can't be that.
  virtual std::vector<std::byte> fitted_state() const { return {}; }
  virtual std::shared_ptr<const Codec> fit_from(std::span<const std::byte>) const { return nullptr; }
};

}  // namespace veloxquant
