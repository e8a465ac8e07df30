// Quad dot product of baseline x86-64: bytes widened to 16 bits, even and odd ones apart.
#include "kernels/tile.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <emmintrin.h>

#include "kernels/tile_dot-inl.h"

namespace veloxquant::kernels {
namespace {

struct Wide {
  __m128i even, odd;
  static inline Wide of(__m128i bytes) {
    return {_mm_srai_epi16(_mm_slli_epi16(bytes, 8), 8), _mm_srai_epi16(bytes, 8)};
  }
};

struct Sse2 {
  using Sum = __m128i;
  using Level = Wide;
  using Query = Wide;
  static constexpr int kLanes = 4;
  static constexpr int kVectors = 2;
  static constexpr int kQueries[] = {2, 1};

  static inline Sum zero() { return _mm_setzero_si128(); }
  static inline Level load(const uint8_t* p) { return Wide::of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static inline Query query(int32_t quad) { return Wide::of(_mm_set1_epi32(quad)); }
  static inline void dot(Sum& sum, const Level& level, const Query& q) {
    const __m128i products = _mm_add_epi32(_mm_madd_epi16(level.even, q.even), _mm_madd_epi16(level.odd, q.odd));
    sum = _mm_add_epi32(sum, products);
  }
  static inline Sum combine(Sum high, Sum low) { return _mm_add_epi32(_mm_slli_epi32(high, 7), low); }
  static inline void store(float* out, Sum sum, const DotTerm& term, const float* factor, bool add) {
    const __m128 dot = _mm_cvtepi32_ps(_mm_add_epi32(sum, _mm_set1_epi32(term.start)));
    __m128 result = _mm_add_ps(_mm_mul_ps(dot, _mm_set1_ps(term.unit)), _mm_set1_ps(term.bias));
    if (factor) result = _mm_mul_ps(result, _mm_loadu_ps(factor));
    if (add) result = _mm_add_ps(result, _mm_loadu_ps(out));
    _mm_storeu_ps(out, result);
  }
};

}  // namespace

void tile_dot_sse2(const TileDot& dot) { tile_dot<Sse2>(dot); }

}  // namespace veloxquant::kernels
#endif
