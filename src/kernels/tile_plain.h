// The functions of kernels/tile.h in plain C++: what runs on baseline processors, and what the parity tests compare
// with. Operand bytes are signed.
#pragma once

#include "kernels/tile.h"

namespace veloxquant::kernels::plain {

void operand(const TileGrid& grid, const TileStrip& strip, const TileLevels& levels, const std::byte* codes,
             const std::byte* ahead, uint8_t* out);
void dot(const TileDot& dot);
float quantise(const float* x, int k, int planes, const OperandOrder& order, int8_t* out, int32_t* sum);
float peak(const float* x, int k);
float apply(const float* x, const float* scale, const float* zero, int k, float* out);
void fold(const FoldRows& rows, const float* scale, const float* zero, int k, int planes, const OperandOrder& order,
          int32_t shift);
void expand(const uint8_t* operand, int width, int steps, const OperandOrder& order, const OperandOrder& parameter,
            const float* scale, const float* zero, int64_t class_stride, float* out, int64_t ld);
void affine_parameters(const uint16_t* scales, const uint16_t* zeros, int n, float middle, float* scale, float* zero);
void permute(const float* x, const OperandOrder& order, float* out);
void pack(const TileGrid& grid, const uint8_t* codes, int64_t ld, bool channel_major, std::byte* out);
void unpack(const TileGrid& grid, const std::byte* tile, uint8_t* codes, int64_t ld);

}  // namespace veloxquant::kernels::plain

namespace veloxquant::kernels {

/// TileKernels::fold by way of the two steps it stands for.
template <class Apply, class Quantise>
void fold_rows(const FoldRows& rows, const float* scale, const float* zero, int k, int planes,
               const OperandOrder& order, int32_t shift, Apply&& apply, Quantise&& quantise) {
  float scaled[kMostTileDim];
  for (int i = 0; i < rows.n; ++i) {
    DotTerm& term = rows.terms[i * rows.ldt];
    int32_t sum;
    term.bias = apply(rows.x + i * rows.ldx, scale, zero, k, scaled);
    term.unit = quantise(scaled, k, planes, order, rows.out + i * rows.ldo, &sum);
    term.start = -shift * sum;
  }
}

}  // namespace veloxquant::kernels
