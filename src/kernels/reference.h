// Plain scalar versions of kernels.h, written to be read: what the parity tests compare with.
//
// The fast versions give equal bits for conversions, transpose, scale, add, subtract_distances, all_finite, within,
// decode_codebook, decode_int8 and all of encoding, for decode_affine while scale * code stays finite, and for
// multiply_accumulate and accumulate_rows on instruction sets with a fused multiply-add. The others agree to rounding:
// their sums have another order, their exp and tanh are other functions.
#pragma once

#include "kernels/kernels.h"

namespace veloxquant::kernels::reference {

void multiply_accumulate(int m, int n, int k, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb,
                         float* c, int64_t ldc);
void dot_rows(int n, int rows, int dim, const float* q, int64_t ldq, const float* x, int64_t ldx, float* logit,
              int64_t ld);
void score_rows(int n, int rows, int dim, const float* q, int64_t ldq, const void* x, DType type, int64_t ldx,
                const void* next, float* logit, int64_t ld);
void accumulate_rows(int n, int rows, int dim, const float* weight, int64_t ldw, const void* x, DType type, int64_t ldx,
                     const void* next, float* acc, int64_t lda);
void transpose(int rows, int cols, const float* x, int64_t ldx, float* y, int64_t ldy);

float softmax_step(float* x, int n, float* max);
void scale(float* x, int64_t n, float factor);
void softcap(float* x, int n, float cap);
void add(float* x, int n, const float* y);
void subtract_distances(float* x, int n, float slope, int distance);
bool all_finite(const float* x, int64_t n);
bool within(const float* x, int64_t n, float limit);

void from_f32(const float* x, int64_t n, DType to, void* out);
void to_f32(const void* x, int64_t n, DType from, float* out);
void round_to(const float* x, int64_t n, DType to, float* out);

void decode_affine(const std::byte* codes, size_t run_bytes, const uint16_t* params, int runs, int run_codes, int group,
                   int bits, float* out, int64_t ld);
void decode_codebook(const std::byte* codes, const std::byte* low_codes, size_t row_bytes, const uint16_t* norms,
                     float norm_scale, int rows, int dim, int bits, const Codebook& book, float* out, int64_t ld);
void decode_int8(const std::byte* codes, const uint16_t* scales, int rows, int dim, float* out, int64_t ld);

void encode_affine_rows(const float* x, int64_t ldx, int rows, int dim, int group, int bits, uint8_t* codes,
                        uint16_t* params);
void encode_affine_channels(const float* x, int64_t ldx, int rows, int dim, int bits, uint8_t* codes, int64_t ldc,
                            uint16_t* params);
void encode_int8(const float* x, int64_t ldx, int rows, int dim, uint8_t* codes, uint16_t* scales);
void inner_products(const float* a, int64_t lda, const float* b, int64_t ldb, int rows, int dim, float* products);
void dense_map(int rows, int in, int out, const float* x, int64_t ldx, const float* columns, float* y, int64_t ldy);
void encode_codebook(float* u, int64_t ldu, int rows, int dim, const float* factors, const float* bounds, int bits,
                     uint8_t* codes);
void encode_residual(const float* u, int64_t ldu, int rows, int dim, const float* levels, const float* bounds, int bits,
                     uint8_t* codes);
void pack_plane(const uint8_t* codes, int64_t ld, int runs, int n, int shift, int width, std::byte* out,
                int64_t out_stride);
void pack_bit_string(const uint8_t* codes, int n, int shift, int bits, std::byte* out);
void rotate(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy);
void rotate_back(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy);

}  // namespace veloxquant::kernels::reference
