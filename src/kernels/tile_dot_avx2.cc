// Quad dot product of AVX2: |level| times the query with the level's sign, so that no pair of products saturates.
#include "kernels/tile.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#include "kernels/tile_dot-inl.h"

namespace veloxquant::kernels {
namespace {

struct Avx2 {
  using Sum = __m256i;
  struct Level {
    __m256i signs, magnitude;
  };
  using Query = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kVectors = 2;
  static constexpr int kQueries[] = {4, 2};

  static inline Sum zero() { return _mm256_setzero_si256(); }
  static inline Level load(const uint8_t* p) {
    const __m256i level = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {level, _mm256_abs_epi8(level)};
  }
  static inline Query query(int32_t quad) { return _mm256_set1_epi32(quad); }
  static inline void dot(Sum& sum, const Level& level, Query q) {
    const __m256i pairs = _mm256_maddubs_epi16(level.magnitude, _mm256_sign_epi8(q, level.signs));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static inline Sum combine(Sum high, Sum low) { return _mm256_add_epi32(_mm256_slli_epi32(high, 7), low); }
  static inline void store(float* out, Sum sum, const DotTerm& term, const float* factor, bool add) {
    const __m256 dot = _mm256_cvtepi32_ps(_mm256_add_epi32(sum, _mm256_set1_epi32(term.start)));
    __m256 result = _mm256_fmadd_ps(dot, _mm256_set1_ps(term.unit), _mm256_set1_ps(term.bias));
    if (factor) result = _mm256_mul_ps(result, _mm256_loadu_ps(factor));
    if (add) result = _mm256_add_ps(result, _mm256_loadu_ps(out));
    _mm256_storeu_ps(out, result);
  }
};

}  // namespace

void tile_dot_avx2(const TileDot& dot) { tile_dot<Avx2>(dot); }

}  // namespace veloxquant::kernels
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
