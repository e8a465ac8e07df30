// Quad dot product of AVX-512 VNNI: unsigned operand bytes times signed query bytes, 16 free indices a vector.
#include "kernels/tile.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")
#endif
#include "kernels/tile_dot-inl.h"

namespace veloxquant::kernels {
namespace {

struct Vnni {
  using Sum = __m512i;
  using Level = __m512i;
  using Query = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kVectors = 2;
  static constexpr int kQueries[] = {4, 4};  // by planes: sums, levels and a query in 32 registers

  static inline Sum zero() { return _mm512_setzero_si512(); }
  static inline Level load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static inline Query query(int32_t quad) { return _mm512_set1_epi32(quad); }
  // As assembly, because around the intrinsic GCC 12 copies every sum to another register and back in each step.
  static inline void dot(Sum& sum, Level level, Query q) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(level), "v"(q));
  }
  static inline Sum combine(Sum high, Sum low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low); }
  static inline void store(float* out, Sum sum, const DotTerm& term, const float* factor, bool add) {
    const __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(sum, _mm512_set1_epi32(term.start)));
    __m512 result = _mm512_fmadd_ps(dot, _mm512_set1_ps(term.unit), _mm512_set1_ps(term.bias));
    if (factor) result = _mm512_mul_ps(result, _mm512_loadu_ps(factor));
    if (add) result = _mm512_add_ps(result, _mm512_loadu_ps(out));
    _mm512_storeu_ps(out, result);
  }
};

}  // namespace

void tile_dot_vnni(const TileDot& dot) { tile_dot<Vnni>(dot); }

}  // namespace veloxquant::kernels
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
