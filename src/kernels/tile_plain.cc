#include "kernels/tile_plain.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/half.h"

namespace veloxquant::kernels::plain {
namespace {

constexpr float kLeastMagnitude = 1e-30f;

/// Where the code of a contraction index stands among those of a strip.
struct Place {
  size_t row, narrow_row;
  int turn, narrow_turn;
  size_t byte;
  int shift, narrow_shift;
};
Place place_of(const TileGrid& grid, const TileStrip& strip, int k) {
  const TileField at = field_of(grid, k);
  return {row_offset(grid, strip, at.word), narrow_row_offset(strip, at.word / 2), row_turn(strip, at.word),
          narrow_row_turn(at.word / 2),     static_cast<size_t>(at.byte),          grid.word_bits() * at.field,
          narrow_bit(at.word, at.field)};
}

unsigned code_at(const TileGrid& grid, const TileStrip& strip, const std::byte* codes, const Place& place, int x) {
  const std::byte byte = codes[place.row + entry_offset(strip, x, place.turn) + place.byte];
  unsigned code = static_cast<unsigned>(byte) >> place.shift & ((1u << grid.word_bits()) - 1);
  if (grid.bits == 3) {
    const std::byte narrow = codes[place.narrow_row + entry_offset(strip, x, place.narrow_turn) + place.byte];
    code |= (static_cast<unsigned>(narrow) >> place.narrow_shift & 1u) << 2;
  }
  return code;
}

/// visit(strip, contraction index, its place) over a tile.
template <class Visit>
void for_each_place(const TileGrid& grid, Visit&& visit) {
  for_each_strip(grid, [&](const TileStrip& strip) {
    for (int k = 0; k < grid.contraction_size(); ++k) visit(strip, k, place_of(grid, strip, k));
  });
}

uint8_t operand_byte(const TileLevels& levels, int bits, unsigned code) {
  if (levels.kind == TileLevels::Kind::table) return static_cast<uint8_t>(levels.levels[code]);
  if (levels.kind == TileLevels::Kind::raw && bits == 8) return static_cast<uint8_t>(code ^ 0x80u);
  return static_cast<uint8_t>(code);
}

}  // namespace

void operand(const TileGrid& grid, const TileStrip& strip, const TileLevels& levels, const std::byte* codes,
             const std::byte*, uint8_t* out) {
  const OperandOrder order = operand_order(grid);
  for (int p = 0; p < grid.contraction_size(); ++p) {
    const int k = p / 64 * 64 + order[static_cast<size_t>(p % 64)];
    const Place place = place_of(grid, strip, k);
    for (int x = 0; x < strip.width; ++x) {
      const unsigned code = code_at(grid, strip, codes, place, x);
      out[(p / 4 * strip.width + x) * 4 + p % 4] = operand_byte(levels, grid.bits, code);
    }
  }
}

void dot(const TileDot& p) {
  for (int i = 0; i < p.queries; ++i) {
    for (int x = 0; x < p.width; ++x) {
      const int c = p.class_stride == 0 ? 0 : x / 32;
      const DotTerm& term = p.terms[i * p.term_stride + c];
      uint32_t sum = static_cast<uint32_t>(term.start);  // wraps as vector lanes do
      for (int plane = 0; plane < p.planes; ++plane) {
        const int8_t* q = p.q + i * p.query_stride + c * p.class_stride + plane * p.plane_stride;
        uint32_t of_plane = 0;
        for (int s = 0; s < p.steps; ++s) {
          for (int m = 0; m < 4; ++m) {
            const int level = static_cast<int8_t>(p.operand[(s * p.width + x) * 4 + m]);
            of_plane += static_cast<uint32_t>(level * q[4 * s + m]);
          }
        }
        sum += p.planes == 2 && plane == 0 ? of_plane << 7 : of_plane;
      }
      float result = static_cast<float>(static_cast<int32_t>(sum)) * term.unit + term.bias;
      if (p.factor) result *= p.factor[x];
      float& out = p.out[i * p.ld + x];
      out = p.add ? out + result : result;
    }
  }
}

float quantise(const float* x, int k, int planes, const OperandOrder& order, int8_t* out, int32_t* sum) {
  float largest = 0;
  for (int i = 0; i < k; ++i) largest = std::max(largest, std::fabs(x[i]));
  *sum = 0;
  if (!(largest >= kLeastMagnitude)) {
    std::memset(out, 0, static_cast<size_t>(planes * k));
    return 0;
  }
  const float limit = planes == 2 ? 16256.0f : 127.0f;
  const float inverse = limit / largest;
  for (int p = 0; p < k; ++p) {
    const int v = static_cast<int>(std::nearbyint(x[p / 64 * 64 + order[static_cast<size_t>(p % 64)]] * inverse));
    *sum += v;
    const int high = planes == 2 ? (v + 64) >> 7 : v;
    out[p] = static_cast<int8_t>(high);
    if (planes == 2) out[k + p] = static_cast<int8_t>(v - 128 * high);
  }
  return largest / limit;
}

float peak(const float* x, int k) {
  float largest = 0, energy = 0;
  for (int i = 0; i < k; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    energy += x[i] * x[i];
  }
  return energy > 0 ? largest * largest * static_cast<float>(k) / energy : 0;
}

float apply(const float* x, const float* scale, const float* zero, int k, float* out) {
  float bias = 0;
  for (int i = 0; i < k; ++i) {
    out[i] = x[i] * scale[i];
    if (zero) bias += x[i] * zero[i];
  }
  return bias;
}

void fold(const FoldRows& rows, const float* scale, const float* zero, int k, int planes, const OperandOrder& order,
          int32_t shift) {
  fold_rows(rows, scale, zero, k, planes, order, shift, apply, quantise);
}

void expand(const uint8_t* operand, int width, int steps, const OperandOrder& order, const OperandOrder& parameter,
            const float* scale, const float* zero, int64_t class_stride, float* out, int64_t ld) {
  for (int p = 0; p < 4 * steps; ++p) {
    const int first = p / 64 * 64;
    float* row = out + (first + order[static_cast<size_t>(p % 64)]) * ld;
    for (int x = 0; x < width; ++x) {
      const int64_t at = x / 32 * class_stride + first + parameter[static_cast<size_t>(p % 64)];
      const int8_t byte = static_cast<int8_t>(operand[(p / 4 * width + x) * 4 + p % 4]);
      row[x] = std::fma(scale[at], static_cast<float>(byte), zero[at]);
    }
  }
}

void affine_parameters(const uint16_t* scales, const uint16_t* zeros, int n, float middle, float* scale, float* zero) {
  for (int i = 0; i < n; ++i) {
    scale[i] = f32_from_f16(scales[i]);
    zero[i] = scale[i] * middle + f32_from_f16(zeros[i]);
  }
}

void permute(const float* x, const OperandOrder& order, float* out) {
  for (size_t p = 0; p < order.size(); ++p) out[p] = x[order[p]];
}

void pack(const TileGrid& grid, const uint8_t* codes, int64_t ld, bool channel_major, std::byte* out) {
  std::fill_n(out, grid.bytes(), std::byte{0});
  const bool along = (grid.side == Side::key) == channel_major;
  for_each_place(grid, [&](const TileStrip& strip, int k, const Place& place) {
    std::byte* rows = out + strip.offset;
    for (int x = 0; x < strip.width; ++x) {
      const int64_t at = along ? k * ld + strip.first + x : (strip.first + x) * ld + k;
      const unsigned code = codes[at];
      rows[place.row + entry_offset(strip, x, place.turn) + place.byte] |=
          static_cast<std::byte>((code & ((1u << grid.word_bits()) - 1)) << place.shift);
      if (grid.bits != 3) continue;
      rows[place.narrow_row + entry_offset(strip, x, place.narrow_turn) + place.byte] |=
          static_cast<std::byte>((code >> 2 & 1u) << place.narrow_shift);
    }
  });
}

void unpack(const TileGrid& grid, const std::byte* tile, uint8_t* codes, int64_t ld) {
  for_each_place(grid, [&](const TileStrip& strip, int k, const Place& place) {
    for (int x = 0; x < strip.width; ++x) {
      const unsigned code = code_at(grid, strip, tile + strip.offset, place, x);
      const int free = strip.first + x;
      codes[grid.side == Side::key ? free * ld + k : k * ld + free] = static_cast<uint8_t>(code);
    }
  });
}

}  // namespace veloxquant::kernels::plain
