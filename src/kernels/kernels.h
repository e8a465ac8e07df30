// The inner loops, compiled by Highway for every instruction set and chosen once at run time. Pointers and sizes
// only; every function takes any size (ragged tails are ordinary) and unaligned pointers. Plain scalar versions of all
// of them are in kernels/reference.h, which the parity tests compare with.
//
// Within one instruction set the bits of a result depend on the inputs alone, never on how a range was cut into calls:
// every sum runs over its index in ascending order in one chain per element (multiply_accumulate, accumulate_rows) or
// is the same tree for every row (score_rows, dot_rows).
#pragma once

#include <cstddef>
#include <cstdint>

#include "veloxquant/types.h"

namespace veloxquant::kernels {

/// c[m][n] += sum over k ascending of a[m * a_row + k * a_col] * b[k * ldb + n]. n runs along vector lanes.
void multiply_accumulate(int m, int n, int k, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb,
                         float* c, int64_t ldc);
/// logit[i][r] = sum over c of q[i * ldq + c] * x[r * ldx + c] for i < n, r < rows: for few queries.
void dot_rows(int n, int rows, int dim, const float* q, int64_t ldq, const float* x, int64_t ldx, float* logit,
              int64_t ld);
/// The same for rows of any element type, `ldx` in elements; dot_rows is the case of f32. The rows that will be read
/// next, without gaps from `next` on (null: unknown), are brought into the cache meanwhile.
void score_rows(int n, int rows, int dim, const float* q, int64_t ldq, const void* x, DType type, int64_t ldx,
                const void* next, float* logit, int64_t ld);
/// acc[i * lda + c] += sum over r ascending of weight[i * ldw + r] * x[r * ldx + c] for i < n, c < dim: for few
/// queries. The bits are those of multiply_accumulate on the converted rows. `next` as above.
void accumulate_rows(int n, int rows, int dim, const float* weight, int64_t ldw, const void* x, DType type, int64_t ldx,
                     const void* next, float* acc, int64_t lda);
/// y[c * ldy + r] = x[r * ldx + c].
void transpose(int rows, int cols, const float* x, int64_t ldx, float* y, int64_t ldy);

/// One online-softmax step of one query row over n logits, in place: new_max = max(old_max, max(x)); x = exp(x -
/// new_max); returns the sum of the new x and sets *max. Logits of -infinity become 0, and so do those more than 87.3
/// below the maximum (subnormal weights would make what follows slow); when all are -infinity (and old_max too),
/// everything is 0 and *max stays -infinity. NaN is not looked for.
float softmax_step(float* x, int n, float* max);
/// x *= factor.
void scale(float* x, int64_t n, float factor);
/// x = cap * tanh(x / cap).
void softcap(float* x, int n, float cap);
/// x[i] += y[i].
void add(float* x, int n, const float* y);
/// x[i] -= slope * (distance - i).
void subtract_distances(float* x, int n, float slope, int distance);
/// True when all are finite.
bool all_finite(const float* x, int64_t n);
/// True when all are at most `limit`, a finite number >= 0, in magnitude; a NaN is not.
bool within(const float* x, int64_t n, float limit);

/// Element type conversions, round to nearest even; equal bits to core/half.h on every instruction set.
void from_f32(const float* x, int64_t n, DType to, void* out);
void to_f32(const void* x, int64_t n, DType from, float* out);
/// out = x rounded to the type and back; out may be x.
void round_to(const float* x, int64_t n, DType to, float* out);

/// Packed unsigned codes (planes of core/layout.h, runs of `run_codes` codes, `run_bytes` apart) with a 16-bit (zero,
/// scale) pair per group of `group` codes of a run: out[r * ld + i] = zero + scale * code. Parameters of run r, group g
/// are params[2 * (r * groups + g)] = zero, [.. + 1] = scale, groups = ceil(run_codes / group). Both are fp16; a scale
/// is never negative, so its sign bit says that both are bf16 instead (values beyond fp16's range).
void decode_affine(const std::byte* codes, size_t run_bytes, const uint16_t* params, int runs, int run_codes, int group,
                   int bits, float* out, int64_t ld);

/// A codebook: `size` <= 256 levels. Level i is unit * integer[i] when `integer` is set (size <= 16), else levels[i].
struct Codebook {
  int size = 0;
  const float* levels = nullptr;
  const int8_t* integer = nullptr;
  float unit = 0;
};
/// Rows of b-bit codes (bit strings of `dim` codes, `row_bytes` apart), optionally in two streams: index = high << b |
/// low, low_codes null for one stream; norms are fp16. out[r * ld + i] = level(index) * (f32(norm[r]) * norm_scale).
void decode_codebook(const std::byte* codes, const std::byte* low_codes, size_t row_bytes, const uint16_t* norms,
                     float norm_scale, int rows, int dim, int bits, const Codebook& book, float* out, int64_t ld);

/// int8 rows with one fp16 scale a row: out[r * ld + i] = f32(scale[r]) * code.
void decode_int8(const std::byte* codes, const uint16_t* scales, int rows, int dim, float* out, int64_t ld);

// --- encoding: equal bits on every instruction set -------------------------------------------------

/// The asymmetric affine code, 1 to 8 bits: a byte a code and, as decode_affine reads them, a (zero, scale) pair a
/// group. Along rows: groups of `group` channels, the last one may be shorter; codes[r * dim + c], params[2 * (r *
/// groups + g)]. Along channels: one group per channel, of all rows; codes[c * ldc + r], params[2 * c].
void encode_affine_rows(const float* x, int64_t ldx, int rows, int dim, int group, int bits, uint8_t* codes,
                        uint16_t* params);
void encode_affine_channels(const float* x, int64_t ldx, int rows, int dim, int bits, uint8_t* codes, int64_t ldc,
                            uint16_t* params);

/// int8 rows: codes[r * dim + c] and one fp16 scale a row, as decode_int8 reads them.
void encode_int8(const float* x, int64_t ldx, int rows, int dim, uint8_t* codes, uint16_t* scales);

/// products[r] = inner product of rows a[r * lda] and b[r * ldb], by 16 interleaved partial sums and one fixed tree.
void inner_products(const float* a, int64_t lda, const float* b, int64_t ldb, int rows, int dim, float* products);

/// y[r * ldy + i] = sum over j < in ascending of columns[j * out + i] * x[r * ldx + j] for i < out; y is not x.
void dense_map(int rows, int in, int out, const float* x, int64_t ldx, const float* columns, float* y, int64_t ldy);

/// u[r * ldu + i] *= factors[r], in place; codes[r * dim + i] = how many of the 2^bits - 1 ascending bounds lie below
/// it, so that a value on a bound takes the lower code. A NaN gets 0.
void encode_codebook(float* u, int64_t ldu, int rows, int dim, const float* factors, const float* bounds, int bits,
                     uint8_t* codes);
/// The second stage on what the first left over: code = code << bits | number of bounds below u - levels[code].
void encode_residual(const float* u, int64_t ldu, int rows, int dim, const float* levels, const float* bounds, int bits,
                     uint8_t* codes);

/// One plane of each of `runs` runs of n codes, `ld` apart: bits [shift, shift + width) of the codes, width 1, 2, 4 or
/// 8, from out + run * out_stride on, ceil(n * width / 8) bytes.
void pack_plane(const uint8_t* codes, int64_t ld, int runs, int n, int shift, int width, std::byte* out,
                int64_t out_stride);

/// One bit string of bits [shift, shift + bits) of n codes, bits 1 to 8: ceil(n * bits / 8) bytes.
void pack_bit_string(const uint8_t* codes, int n, int shift, int bits, std::byte* out);

/// `rounds` rounds of signs and an unnormalised Hadamard matrix H_2 x ... x H_2 x C of order dim = core * 2^k.
struct HadamardRounds {
  int dim = 1, rounds = 1, core = 1;  ///< order of C: 1 ([1]), 12, 20 or 28
  const float* factors = nullptr;     ///< [round][dim], what the channels are multiplied with
  const float* rows = nullptr;        ///< C row by row, entries 1 and -1
  const float* columns = nullptr;     ///< C column by column
};
/// y = H F_0 .. H F_(rounds - 1) x for each row; y may be x with the same stride.
void rotate(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy);
/// y = F_(rounds - 1) H^T .. F_0 H^T x, likewise.
void rotate_back(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy);

}  // namespace veloxquant::kernels
