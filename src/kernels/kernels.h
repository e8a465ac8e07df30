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

/// Element type conversions, round to nearest even; equal bits to core/half.h on every instruction set.
void from_f32(const float* x, int64_t n, DType to, void* out);
void to_f32(const void* x, int64_t n, DType from, float* out);

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

}  // namespace veloxquant::kernels
