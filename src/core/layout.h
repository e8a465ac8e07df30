// Where a code stands inside the code part of a storage block. All code reaches codes through code_index().
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace veloxquant {

/// Which codes are contiguous: those of a row (a run is one row of `dim` codes) or those of a channel of one unit (a
/// run is one channel of `unit_rows` codes, channels ascending, units ascending).
enum class CodeOrder : uint8_t { rows, channels };

/// How the codes of a run are packed. `planes`: power-of-two bit planes, least significant first, each starting on a
/// byte (3 = 2+1, 5 = 4+1, 6 = 4+2, 7 = 4+2+1); `bit_string`: element i occupies bits [i*b, (i+1)*b) of a little-endian
/// string. Both are the same for 1, 2, 4 and 8 bits.
enum class Packing : uint8_t { planes, bit_string };

struct CodeGrid {
  uint8_t layout = 0;  ///< 0: the logical order. 1 (tiles of the fast kernels) comes with them
  CodeOrder order = CodeOrder::rows;
  Packing packing = Packing::planes;
  int bits = 0;
  int dim = 0;
  int unit_rows = 1;

  constexpr int run_codes() const { return order == CodeOrder::rows ? dim : unit_rows; }
};

/// Widths of the planes of a b-bit code, least significant first; ends with 0.
struct Planes {
  int width[4] = {};
  int count = 0;
};
constexpr Planes planes_of(int bits) {
  Planes p;
  for (int width : {8, 4, 2, 1}) {
    if (bits & width) p.width[p.count++] = width;
  }
  return p;
}

/// Bytes of a packed run of n codes.
constexpr size_t packed_bytes(Packing packing, int n, int bits) {
  if (packing == Packing::bit_string) return (static_cast<size_t>(n) * static_cast<size_t>(bits) + 7) / 8;
  size_t bytes = 0;
  const Planes planes = planes_of(bits);
  for (int p = 0; p < planes.count; ++p)
    bytes += (static_cast<size_t>(n) * static_cast<size_t>(planes.width[p]) + 7) / 8;
  return bytes;
}

/// Bit offset, from the start of the code part, of plane `plane` of the code of (row in block, channel).
constexpr size_t code_index(const CodeGrid& grid, int row, int channel, int plane = 0) {
  const int n = grid.run_codes();
  const size_t run =
      grid.order == CodeOrder::rows
          ? static_cast<size_t>(row)
          : static_cast<size_t>(row / grid.unit_rows) * static_cast<size_t>(grid.dim) + static_cast<size_t>(channel);
  const size_t element = static_cast<size_t>(grid.order == CodeOrder::rows ? channel : row % grid.unit_rows);
  size_t bit = run * packed_bytes(grid.packing, n, grid.bits) * 8;
  if (grid.packing == Packing::bit_string) return bit + element * static_cast<size_t>(grid.bits);
  const Planes planes = planes_of(grid.bits);
  for (int p = 0; p < plane; ++p) bit += (static_cast<size_t>(n) * static_cast<size_t>(planes.width[p]) + 7) / 8 * 8;
  return bit + element * static_cast<size_t>(planes.width[plane]);
}

}  // namespace veloxquant
