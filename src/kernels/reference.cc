#include "kernels/reference.h"

#include <algorithm>
#include <cmath>

#include "core/half.h"
#include "core/layout.h"

namespace veloxquant::kernels::reference {
namespace {

/// `width` bits from bit `bit` of a little-endian string.
uint32_t bits_at(const std::byte* string, size_t bit, int width) {
  uint32_t value = 0;
  for (int i = 0; i < width; ++i, ++bit) {
    const uint32_t one = static_cast<uint32_t>(string[bit / 8] >> (bit % 8)) & 1u;
    value |= one << i;
  }
  return value;
}

uint32_t plane_code(const std::byte* run, const CodeGrid& grid, int i) {
  const Planes planes = planes_of(grid.bits);
  uint32_t code = 0;
  for (int p = 0, shift = 0; p < planes.count; shift += planes.width[p], ++p) {
    code |= bits_at(run, code_index(grid, 0, i, p), planes.width[p]) << shift;
  }
  return code;
}

float level(const Codebook& book, uint32_t index) {
  if (index >= static_cast<uint32_t>(book.size)) return 0.0f;
  return book.integer ? book.unit * static_cast<float>(book.integer[index]) : book.levels[index];
}

float element(const void* x, DType type, int64_t i) {
  if (type == DType::f32) return static_cast<const float*>(x)[i];
  const uint16_t bits = static_cast<const uint16_t*>(x)[i];
  return type == DType::f16 ? f32_from_f16(bits) : f32_from_bf16(bits);
}

}  // namespace

void multiply_accumulate(int m, int n, int k, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb,
                         float* c, int64_t ldc) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = c[i * ldc + j];
      for (int l = 0; l < k; ++l) sum = std::fma(a[i * a_row + l * a_col], b[l * ldb + j], sum);
      c[i * ldc + j] = sum;
    }
  }
}

void dot_rows(int n, int rows, int dim, const float* q, int64_t ldq, const float* x, int64_t ldx, float* logit,
              int64_t ld) {
  score_rows(n, rows, dim, q, ldq, x, DType::f32, ldx, nullptr, logit, ld);
}

void score_rows(int n, int rows, int dim, const float* q, int64_t ldq, const void* x, DType type, int64_t ldx,
                const void*, float* logit, int64_t ld) {
  for (int i = 0; i < n; ++i) {
    for (int r = 0; r < rows; ++r) {
      double sum = 0;
      for (int c = 0; c < dim; ++c) sum += double{q[i * ldq + c]} * double{element(x, type, r * ldx + c)};
      logit[i * ld + r] = static_cast<float>(sum);
    }
  }
}

void accumulate_rows(int n, int rows, int dim, const float* weight, int64_t ldw, const void* x, DType type, int64_t ldx,
                     const void*, float* acc, int64_t lda) {
  for (int i = 0; i < n; ++i) {
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < dim; ++c) {
        float& sum = acc[i * lda + c];
        sum = std::fma(weight[i * ldw + r], element(x, type, r * ldx + c), sum);
      }
    }
  }
}

void transpose(int rows, int cols, const float* x, int64_t ldx, float* y, int64_t ldy) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) y[c * ldy + r] = x[r * ldx + c];
  }
}

float softmax_step(float* x, int n, float* max) {
  for (int i = 0; i < n; ++i) *max = std::max(*max, x[i]);
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    const bool weighs = std::isfinite(*max) && x[i] - *max >= -87.3f;  // below, exp is subnormal
    x[i] = weighs ? std::exp(x[i] - *max) : 0.0f;
    sum += double{x[i]};
  }
  return static_cast<float>(sum);
}

void scale(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

void softcap(float* x, int n, float cap) {
  for (int i = 0; i < n; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

void add(float* x, int n, const float* y) {
  for (int i = 0; i < n; ++i) x[i] += y[i];
}

void subtract_distances(float* x, int n, float slope, int distance) {
  for (int i = 0; i < n; ++i) x[i] -= slope * static_cast<float>(distance - i);
}

bool all_finite(const float* x, int64_t n) {
  return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

void from_f32(const float* x, int64_t n, DType to, void* out) {
  for (int64_t i = 0; i < n; ++i) {
    if (to == DType::f32) static_cast<float*>(out)[i] = x[i];
    if (to == DType::f16) static_cast<uint16_t*>(out)[i] = f16_from_f32(x[i]);
    if (to == DType::bf16) static_cast<uint16_t*>(out)[i] = bf16_from_f32(x[i]);
  }
}

void to_f32(const void* x, int64_t n, DType from, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = element(x, from, i);
}

void decode_affine(const std::byte* codes, size_t run_bytes, const uint16_t* params, int runs, int run_codes, int group,
                   int bits, float* out, int64_t ld) {
  const CodeGrid grid{.packing = Packing::planes, .bits = bits, .dim = run_codes};
  const int groups = (run_codes + group - 1) / group;
  for (int r = 0; r < runs; ++r) {
    for (int i = 0; i < run_codes; ++i) {
      const uint16_t* pair = params + 2 * (r * groups + i / group);
      const bool brain = pair[1] & 0x8000u;
      const uint16_t magnitude = pair[1] & 0x7fffu;
      const float zero = brain ? f32_from_bf16(pair[0]) : f32_from_f16(pair[0]);
      const float scale = brain ? f32_from_bf16(magnitude) : f32_from_f16(magnitude);
      const float code = static_cast<float>(plane_code(codes + static_cast<size_t>(r) * run_bytes, grid, i));
      out[r * ld + i] = std::fma(scale, code, zero);
    }
  }
}

void decode_codebook(const std::byte* codes, const std::byte* low_codes, size_t row_bytes, const uint16_t* norms,
                     float norm_scale, int rows, int dim, int bits, const Codebook& book, float* out, int64_t ld) {
  for (int r = 0; r < rows; ++r) {
    const size_t row = static_cast<size_t>(r) * row_bytes;
    const float factor = f32_from_f16(norms[r]) * norm_scale;
    for (int i = 0; i < dim; ++i) {
      const size_t bit = static_cast<size_t>(i) * static_cast<size_t>(bits);
      uint32_t index = bits_at(codes + row, bit, bits);
      if (low_codes != nullptr) index = index << bits | bits_at(low_codes + row, bit, bits);
      out[r * ld + i] = level(book, index) * factor;
    }
  }
}

void decode_int8(const std::byte* codes, const uint16_t* scales, int rows, int dim, float* out, int64_t ld) {
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < dim; ++i) {
      const int8_t code = static_cast<int8_t>(codes[static_cast<int64_t>(r) * dim + i]);
      out[r * ld + i] = f32_from_f16(scales[r]) * static_cast<float>(code);
    }
  }
}

}  // namespace veloxquant::kernels::reference
