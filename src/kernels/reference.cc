#include "kernels/reference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <vector>

#include "core/half.h"
#include "core/layout.h"
#include "kernels/affine_ends.h"

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

/// Least and largest value. Of zeros that differ in their sign the first counts, in the order of 16 interleaved partial
/// results and then what is behind the last whole 16.
AffineEnds ends_of(const std::vector<float>& x) {
  AffineEnds ends{x[0], x[0]};
  const auto visit = [&](float value) {
    ends.low = value < ends.low ? value : ends.low;
    ends.high = value > ends.high ? value : ends.high;
  };
  const size_t whole = x.size() / 16 * 16;
  for (size_t lane = 0; lane < 16; ++lane) {
    for (size_t i = lane; i < whole; i += 16) visit(x[i]);
  }
  for (size_t i = whole; i < x.size(); ++i) visit(x[i]);
  return ends;
}

/// The low bits of a sum with 2^23 (or 1.5 * 2^23): rounded to nearest even.
uint8_t rounded_code(float value, float low, float high, float magic) {
  const float above = value > low ? value : low;
  return static_cast<uint8_t>(std::bit_cast<uint32_t>((above < high ? above : high) + magic));
}

/// One group of the affine code; params are its zero and scale.
std::vector<uint8_t> affine_codes(const std::vector<float>& x, int bits, uint16_t* params) {
  const float last = static_cast<float>((1 << bits) - 1);
  AffineEnds ends = ends_of(x);
  if (bits == 1) ends = two_means(x.data(), 1, static_cast<int>(x.size()), ends);
  const float range = ends.high - ends.low;
  const float step = range <= FLT_MAX ? range / last : wide_step(ends, last);
  const bool wide = std::fabs(ends.low) > 65504 || step > 65504;
  const uint16_t stored_zero = wide ? bf16_from_f32(ends.low) : f16_from_f32(ends.low);
  const uint16_t stored_scale = wide ? bf16_from_f32(step) : f16_from_f32(step);
  params[0] = stored_zero;
  params[1] = static_cast<uint16_t>(wide ? stored_scale | 0x8000u : stored_scale);
  // Differences of wide groups may overflow, and halving all numbers changes no quotient.
  const float factor = wide ? 0.5f : 1.0f;
  const float zero = (wide ? f32_from_bf16(stored_zero) : f32_from_f16(stored_zero)) * factor;
  const float scale = (wide ? f32_from_bf16(stored_scale) : f32_from_f16(stored_scale)) * factor;
  std::vector<uint8_t> codes(x.size());
  for (size_t i = 0; i < x.size() && scale > 0; ++i) {
    codes[i] = rounded_code((x[i] * factor - zero) / scale, 0, last, 0x1p23f);
  }
  return codes;
}

uint16_t int8_scale(float largest) {
  const uint16_t scale = std::min(f16_from_f32(std::max(largest / 127, 0x1p-24f)), uint16_t{0x7bff});
  return largest / f32_from_f16(scale) > 127 && scale < 0x7bff ? static_cast<uint16_t>(scale + 1) : scale;
}

uint8_t count_below(float value, const float* bounds, int bits) {
  uint8_t code = 0;
  for (int i = 0; i < (1 << bits) - 1; ++i) code = static_cast<uint8_t>(code + (value > bounds[i]));
  return code;
}

/// y = H y, with the core by columns; H^T y with the core by rows.
void hadamard(const HadamardRounds& map, const float* core, float* y) {
  for (int block = 0; block < map.dim && map.core > 1; block += map.core) {
    std::vector<float> sum(static_cast<size_t>(map.core));
    for (int j = 0; j < map.core; ++j) {
      for (int i = 0; i < map.core; ++i) sum[static_cast<size_t>(i)] += core[j * map.core + i] * y[block + j];
    }
    std::copy(sum.begin(), sum.end(), y + block);
  }
  for (int stride = map.core; stride < map.dim; stride *= 2) {
    for (int i = 0; i < map.dim; ++i) {
      if (i / stride % 2 != 0) continue;
      const float low = y[i], high = y[i + stride];
      y[i] = low + high;
      y[i + stride] = low - high;
    }
  }
}

void multiply(const HadamardRounds& map, int round, float* y) {
  for (int i = 0; i < map.dim; ++i) y[i] *= map.factors[int64_t{round} * map.dim + i];
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

bool within(const float* x, int64_t n, float limit) {
  return std::all_of(x, x + n, [=](float v) { return std::fabs(v) <= limit; });
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

void round_to(const float* x, int64_t n, DType to, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    if (to == DType::f32) out[i] = x[i];
    if (to == DType::f16) out[i] = f32_from_f16(f16_from_f32(x[i]));
    if (to == DType::bf16) out[i] = f32_from_bf16(bf16_from_f32(x[i]));
  }
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

void encode_affine_rows(const float* x, int64_t ldx, int rows, int dim, int group, int bits, uint8_t* codes,
                        uint16_t* params) {
  for (int r = 0; r < rows; ++r) {
    for (int first = 0; first < dim; first += group, params += 2) {
      const float* from = x + r * ldx + first;
      const std::vector<uint8_t> run = affine_codes({from, from + std::min(group, dim - first)}, bits, params);
      codes = std::copy(run.begin(), run.end(), codes);
    }
  }
}

void encode_affine_channels(const float* x, int64_t ldx, int rows, int dim, int bits, uint8_t* codes, int64_t ldc,
                            uint16_t* params) {
  for (int c = 0; c < dim; ++c, codes += ldc, params += 2) {
    std::vector<float> column;
    for (int r = 0; r < rows; ++r) column.push_back(x[r * ldx + c]);
    const std::vector<uint8_t> run = affine_codes(column, bits, params);
    std::copy(run.begin(), run.end(), codes);
  }
}

void encode_int8(const float* x, int64_t ldx, int rows, int dim, uint8_t* codes, uint16_t* scales) {
  for (int r = 0; r < rows; ++r) {
    float largest = 0;
    for (int i = 0; i < dim; ++i) largest = std::max(largest, std::fabs(x[r * ldx + i]));
    scales[r] = int8_scale(largest);
    const float scale = f32_from_f16(scales[r]);
    for (int i = 0; i < dim; ++i) *codes++ = rounded_code(x[r * ldx + i] / scale, -127, 127, 0x1.8p23f);
  }
}

void inner_products(const float* a, int64_t lda, const float* b, int64_t ldb, int rows, int dim, float* products) {
  for (int r = 0; r < rows; ++r) {
    std::array<float, 16> sum{};
    for (int i = 0; i < dim; ++i) sum[static_cast<size_t>(i) % 16] += a[r * lda + i] * b[r * ldb + i];
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) sum[i] += sum[i + half];
    }
    products[r] = sum[0];
  }
}

void dense_map(int rows, int in, int out, const float* x, int64_t ldx, const float* columns, float* y, int64_t ldy) {
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < out; ++i) {
      float sum = 0;
      for (int j = 0; j < in; ++j) sum += columns[int64_t{j} * out + i] * x[r * ldx + j];
      y[r * ldy + i] = sum;
    }
  }
}

void encode_codebook(float* u, int64_t ldu, int rows, int dim, const float* factors, const float* bounds, int bits,
                     uint8_t* codes) {
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < dim; ++i) *codes++ = count_below(u[r * ldu + i] *= factors[r], bounds, bits);
  }
}

void encode_residual(const float* u, int64_t ldu, int rows, int dim, const float* levels, const float* bounds, int bits,
                     uint8_t* codes) {
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < dim; ++i, ++codes) {
      const uint8_t low = count_below(u[r * ldu + i] - levels[*codes], bounds, bits);
      *codes = static_cast<uint8_t>(*codes << bits | low);
    }
  }
}

void pack_plane(const uint8_t* codes, int64_t ld, int runs, int n, int shift, int width, std::byte* out,
                int64_t out_stride) {
  for (int run = 0; run < runs; ++run) {
    for (int i = 0; i < n; ++i) {
      const int bit = i * width;
      std::byte& byte = out[run * out_stride + bit / 8];
      const int field = codes[run * ld + i] >> shift & ((1 << width) - 1);
      byte = (bit % 8 == 0 ? std::byte{0} : byte) | static_cast<std::byte>(field << bit % 8);
    }
  }
}

void pack_bit_string(const uint8_t* codes, int n, int shift, int bits, std::byte* out) {
  std::fill_n(out, packed_bytes(Packing::bit_string, n, bits), std::byte{0});
  for (int bit = 0; bit < n * bits; ++bit) {
    const int one = codes[bit / bits] >> (shift + bit % bits) & 1;
    out[bit / 8] |= static_cast<std::byte>(one << bit % 8);
  }
}

void rotate(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) {
  for (int r = 0; r < rows; ++r) {
    if (x != y) std::copy_n(x + r * ldx, map.dim, y + r * ldy);
    for (int round = map.rounds - 1; round >= 0; --round) {
      multiply(map, round, y + r * ldy);
      hadamard(map, map.columns, y + r * ldy);
    }
  }
}

void rotate_back(const HadamardRounds& map, int rows, const float* x, int64_t ldx, float* y, int64_t ldy) {
  for (int r = 0; r < rows; ++r) {
    if (x != y) std::copy_n(x + r * ldx, map.dim, y + r * ldy);
    for (int round = 0; round < map.rounds; ++round) {
      hadamard(map, map.rows, y + r * ldy);
      multiply(map, round, y + r * ldy);
    }
  }
}

}  // namespace veloxquant::kernels::reference
