// Attention on sealed tiles (core/tile_layout.h) in integers: codes become the bytes of a quad integer dot product,
// queries and weights become one or two planes of int8, sums are exact.
//
//   2 planes ("2term"): 15 bits, x = unit * (128 * high + low); 1 plane ("int8"): 7 bits, x = unit * high
//
// The table below has one row of functions for the instruction set that runs; it is filled at the first use. Highway
// has no quad dot product in the version used: tile_dot_*.cc are one small file an instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tile_layout.h"

namespace veloxquant::kernels {

/// What a code stands for.
struct TileLevels {
  enum class Kind : uint8_t {
    raw,      ///< the code itself, 0 .. 2^bits - 1
    integer,  ///< a two's complement byte (8 bits)
    table     ///< levels[code]; up to 4 bits, repeated to fill all 16
  };
  Kind kind = Kind::raw;
  int8_t levels[16] = {};
};

/// Numbers of one (query, class) of a dot product: out = bias + unit * (start + sum of operand times q).
struct DotTerm {
  float unit = 0, bias = 0;
  int32_t start = 0;
};

/// Sums over all steps of a strip of `width` (64, 32, 16) free indices for several queries:
///   out[i * ld + x] (+)= term.bias + term.unit * (term.start + sum over s, m of operand[s][x][m] * q[s][m])
/// times factor[x] where factors are given,
/// with q of query i, class c and plane p at q + i * query_stride + c * class_stride + p * plane_stride; a class is 32
/// free indices when class_stride is set, else there is one.
struct TileDot {
  const uint8_t* operand = nullptr;  ///< [steps][width][4], as `operand` writes it
  int width = 0, steps = 0;
  const int8_t* q = nullptr;  ///< bytes in operand order, `steps` dwords a plane
  int64_t query_stride = 0, class_stride = 0, plane_stride = 0;
  int planes = 0, queries = 0;
  const DotTerm* terms = nullptr;  ///< of query i and class c: terms[i * term_stride + c]
  int64_t term_stride = 0;
  const float* factor = nullptr;
  float* out = nullptr;
  int64_t ld = 0;
  bool add = false;
};

/// Rows that are folded with one set of parameters.
struct FoldRows {
  const float* x = nullptr;
  int64_t ldx = 0;
  int n = 0;
  int8_t* out = nullptr;
  int64_t ldo = 0;
  DotTerm* terms = nullptr;
  int64_t ldt = 0;
};

struct TileKernels {
  /// Codes of the strip at `strip` of a tile as operand bytes. `ahead` (null: unknown) are as many bytes that will be
  /// read next; they are fetched meanwhile.
  void (*operand)(const TileGrid& grid, const TileStrip& strip, const TileLevels& levels, const std::byte* codes,
                  const std::byte* ahead, uint8_t* out);
  void (*dot)(const TileDot& dot);
  /// x[0 .. k), k a multiple of 16, as planes in operand order: out[p * k + position]. Returns the unit and sets the
  /// sum of the integers; all zeros with unit 0 where no magnitude reaches 1e-30.
  float (*quantise)(const float* x, int k, int planes, const OperandOrder& order, int8_t* out, int32_t* sum);
  /// Square of the largest magnitude over the mean square of k numbers, 0 when all are 0; k as above.
  float (*peak)(const float* x, int k);
  /// out = x * scale over k numbers, k a multiple of 16; returns the sum of x * zero, 0 where zero is null.
  float (*apply)(const float* x, const float* scale, const float* zero, int k, float* out);
  /// apply and quantise for n rows x[i * ldx]: planes at out + i * ldo, terms[i * ldt] = {unit, sum of x * zero, -shift
  /// * sum of the integers}. `zero` may be null.
  void (*fold)(const FoldRows& rows, const float* scale, const float* zero, int k, int planes,
               const OperandOrder& order, int32_t shift);
  /// Codes of a strip in fp32, contraction index first: out[e * ld + x] = zero[c][p] + scale[c][p] * operand byte,
  /// where p is a position of the operand, e = order[p] in its group of 64, and scale and zero stand at parameter[p]
  /// there; c is x / 32 when class_stride is set.
  void (*expand)(const uint8_t* operand, int width, int steps, const OperandOrder& order, const OperandOrder& parameter,
                 const float* scale, const float* zero, int64_t class_stride, float* out, int64_t ld);
  /// n fp16 pairs, a multiple of 16: scale, and the zero of codes counted from `middle` on: zero + middle * scale.
  void (*affine_parameters)(const uint16_t* scales, const uint16_t* zeros, int n, float middle, float* scale,
                            float* zero);
  /// out[p] = x[order[p]] for 64 numbers.
  void (*permute)(const float* x, const OperandOrder& order, float* out);
  /// Codes, codes[row * ld + channel] or, channel-major, codes[channel * ld + row], to the words of a tile.
  void (*pack)(const TileGrid& grid, const uint8_t* codes, int64_t ld, bool channel_major, std::byte* out);
  /// Operand bytes are the levels plus this (0 where the dot product takes signed bytes): see operand_shift.
  int table_shift;
  const char* name;  ///< of the dot product: vnni, avx2, ...
};

const TileKernels& tile_kernels();

/// Operand byte minus level, for levels of `levels` counted from the middle of the raw codes' range: the start of a dot
/// product is minus this times the sum of the query's integers.
int operand_shift(const TileKernels& kernels, const TileLevels& levels, int bits);

// The dot products of src/kernels/tile_dot_*.cc.
void tile_dot_vnni(const TileDot& dot);
void tile_dot_avx2(const TileDot& dot);
void tile_dot_sse2(const TileDot& dot);
void tile_dot_neon(const TileDot& dot);

}  // namespace veloxquant::kernels
