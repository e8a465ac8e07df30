// Layout 1: where a code stands inside a sealed tile of 64 rows of one side.
//
// Codes are packed in 32-bit words along the contraction index k of attention - channels of a key tile, tokens of a
// value tile - with one word a free index x - tokens of a key tile, channels of a value tile. Free indices come in
// strips of 64 (then 32, then 16); a strip is rows of words, one row a word number. So a vector load is an operand of
// the quad integer dot product as it stands, with one free index a lane, and a kernel reads a tile once, in ascending
// lines. The 16-byte units of a row are swizzled so that the rows of four consecutive words fall into different shared
// memory banks of a GPU.
//
// A code of 3 bits is a 2-bit plane and a 1-bit plane, interleaved in groups of 32 contraction codes:
// [1-bit row][2-bit row 2g][2-bit row 2g+1].
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "veloxquant/types.h"

namespace veloxquant {

inline constexpr int kTileRows = 64;
inline constexpr int kMostTileDim =
    1024;  ///< up to here a 32-bit sum of 15-bit queries times 8-bit levels cannot overflow

/// How the elements of a word are spread over its bytes and fields.
enum class FieldOrder : uint8_t {
  codebook,  ///< a byte holds elements that are 4 apart at 4 bits
  affine     ///< a byte holds neighbours: two codes become two fp16 numbers of one register on a GPU
};

struct TileGrid {
  Side side = Side::key;
  FieldOrder order = FieldOrder::codebook;
  int bits = 4;  ///< 1, 2, 3, 4 or 8
  int dim = 64;  ///< a multiple of 16

  /// Tiles of other geometries would need padding: their blocks stay in layout 0.
  static constexpr bool exists(Side side, int bits, int dim) {
    const bool width = bits == 1 || bits == 2 || bits == 3 || bits == 4 || bits == 8;
    const int whole = side == Side::key && (bits == 1 || bits == 3) ? 32 : 16;
    return width && dim > 0 && dim <= kMostTileDim && dim % whole == 0;
  }

  constexpr int free_size() const { return side == Side::key ? kTileRows : dim; }
  constexpr int contraction_size() const { return side == Side::key ? dim : kTileRows; }
  /// Width of the plane that is stored in whole words.
  constexpr int word_bits() const { return bits == 3 ? 2 : bits; }
  constexpr int word_codes() const { return 32 / word_bits(); }
  /// Words of one free index (of 3 bits: those of the 2-bit plane).
  constexpr int words() const { return contraction_size() / word_codes(); }
  constexpr size_t bytes() const { return static_cast<size_t>(8 * dim * bits); }
};

/// Free indices [first, first + width) and where their rows begin. Width is 64, 32 or 16.
struct TileStrip {
  int first = 0, width = 0;
  size_t offset = 0;  ///< bytes from the start of the tile's codes
  constexpr size_t row_bytes() const { return static_cast<size_t>(4 * width); }
};

constexpr TileStrip strip_at(const TileGrid& grid, int x) {
  const int left = grid.free_size() - x / 64 * 64;
  TileStrip strip{x / 64 * 64, 64, 0};
  if (left < 64) {
    const int begin = strip.first, inside = x - begin;
    if (left >= 32 && inside < 32) {
      strip = {begin, 32, 0};
    } else {
      strip = {begin + (left >= 32 ? 32 : 0), 16, 0};
    }
  }
  strip.offset = static_cast<size_t>(strip.first) * static_cast<size_t>(grid.contraction_size() * grid.bits / 8);
  return strip;
}

/// visit(strip) for all strips of a tile.
template <class Visit>
constexpr void for_each_strip(const TileGrid& grid, Visit&& visit) {
  for (int x = 0; x < grid.free_size();) {
    const TileStrip strip = strip_at(grid, x);
    visit(strip);
    x += strip.width;
  }
}

/// An element of the contraction index inside its word: byte m, field f.
struct TileField {
  int word, byte, field;
};
constexpr TileField field_of(const TileGrid& grid, int k) {
  const int b = grid.word_bits();
  const bool near = grid.order == FieldOrder::affine;
  if (b == 8) return {k / 4, k % 4, 0};
  if (b == 4) {
    const int n = k % 8;
    return near ? TileField{k / 8, n / 2, n % 2} : TileField{k / 8, n % 4, n / 4};
  }
  if (grid.side == Side::key) {
    const int per_byte = 8 / b, n = k % (4 * per_byte);
    return {k / (4 * per_byte), n / per_byte, n % per_byte};
  }
  if (b == 2) {
    const int low = (k >> 2) & 1, high = k >> 5;
    constexpr int kTurned[] = {0, 2, 1, 3};
    return near ? TileField{(k >> 3) & 3, 2 * low + high, k & 3}
                : TileField{(k >> 3) & 3, low + 2 * high, kTurned[k & 3]};
  }
  return {(k >> 4) & 1, ((k >> 3) & 1) + 2 * (k >> 5), k & 7};
}

/// Offset of the 32-bit entry of free index `x` (counted from the strip's first) in a row of the strip whose 16-byte
/// units are swizzled by `turn`.
constexpr size_t entry_offset(const TileStrip& strip, int x, int turn) {
  const int units = strip.width / 4 < 8 ? strip.width / 4 : 8;
  const int unit = (x / 4) % units;
  return static_cast<size_t>((x / 32) * 128 + (unit ^ turn) * 16 + (x % 4) * 4);
}
/// Swizzle of word row `word`.
constexpr int row_turn(const TileStrip& strip, int word) {
  return strip.width == 16 ? 2 * ((word >> 1) & 1) : 2 * (word & 3);
}
/// Offset of word row `word` inside a strip.
constexpr size_t row_offset(const TileGrid& grid, const TileStrip& strip, int word) {
  const int row = grid.bits == 3 ? word / 2 * 3 + 1 + word % 2 : word;
  return static_cast<size_t>(row) * strip.row_bytes();
}
/// The same for the 1-bit row of 3-bit codes that belongs to words 2 * group and 2 * group + 1.
constexpr size_t narrow_row_offset(const TileStrip& strip, int group) {
  return static_cast<size_t>(3 * group) * strip.row_bytes();
}
constexpr int narrow_row_turn(int group) { return 2 * (group & 1); }
/// Bit of a narrow code inside byte m of its entry.
constexpr int narrow_bit(int word, int field) { return (field < 2 ? 4 + field : field - 2) + 2 * (word & 1); }

/// Bit offset, from the start of the tile's codes, of plane `plane` (of 3 bits: 0 two bits wide, 1 one bit wide) of the
/// code of (row in tile, channel).
constexpr size_t tile_code_index(const TileGrid& grid, int row, int channel, int plane = 0) {
  const int x = grid.side == Side::key ? row : channel, k = grid.side == Side::key ? channel : row;
  const TileStrip strip = strip_at(grid, x);
  const TileField at = field_of(grid, k);
  if (plane == 1) {
    const int group = at.word / 2;
    const size_t byte = strip.offset + narrow_row_offset(strip, group) +
                        entry_offset(strip, x - strip.first, narrow_row_turn(group)) + static_cast<size_t>(at.byte);
    return byte * 8 + static_cast<size_t>(narrow_bit(at.word, at.field));
  }
  const size_t byte = strip.offset + row_offset(grid, strip, at.word) +
                      entry_offset(strip, x - strip.first, row_turn(strip, at.word)) + static_cast<size_t>(at.byte);
  return byte * 8 + static_cast<size_t>(grid.word_bits() * at.field);
}

/// The contraction index at byte `m` of step `step` of a dot operand: step = word * fields + field.
using OperandOrder = std::array<uint8_t, 64>;
/// Operand position p of each group of 64 holds contraction index order[p] of that group; a last, shorter group uses
/// the first entries.
constexpr OperandOrder operand_order(const TileGrid& grid) {
  OperandOrder order{};
  const int fields = 8 / grid.word_bits();
  for (int k = 0; k < 64; ++k) {
    const TileField at = field_of({grid.side, grid.order, grid.bits, 64}, k);
    order[static_cast<size_t>((at.word * fields + at.field) * 4 + at.byte)] = static_cast<uint8_t>(k);
  }
  return order;
}

/// Stored order of affine parameters, so that one GPU register holds those of the two codes of a byte: position p of a
/// run holds element parameter_order(..., p), a channel of a key tile or a token of a value tile.
constexpr int parameter_order(Side side, int bits, int p) {
  if (bits != 2 && bits != 4) return p;
  if (side == Side::value) return 32 * ((p >> 3) & 1) + 8 * (p >> 4) + ((p >> 1) & 3) + 4 * (p & 1);
  const int half = bits == 4 ? 4 : 8, run = 2 * half;
  return p / run * run + p % run / 2 + half * (p & 1);
}

}  // namespace veloxquant
