// Quad dot product of NEON: sdot where the build's baseline has it, else widening multiplications.
#include "kernels/tile.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "kernels/tile_dot-inl.h"

namespace veloxquant::kernels {
namespace {

struct Neon {
  using Sum = int32x4_t;
  using Level = int8x16_t;
  using Query = int8x16_t;
  static constexpr int kLanes = 4;
  static constexpr int kVectors = 4;
  static constexpr int kQueries[] = {4, 2};

  static inline Sum zero() { return vdupq_n_s32(0); }
  static inline Level load(const uint8_t* p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
  static inline Query query(int32_t quad) { return vreinterpretq_s8_s32(vdupq_n_s32(quad)); }
  static inline void dot(Sum& sum, Level level, Query q) {
#if defined(__ARM_FEATURE_DOTPROD)
    sum = vdotq_s32(sum, level, q);
#else
    // Pairs are added in 32 bits: two products of bytes may overflow 16.
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(level), vget_low_s8(q)));
    const int32x4_t high = vpaddlq_s16(vmull_high_s8(level, q));
    sum = vaddq_s32(sum, vpaddq_s32(low, high));
#endif
  }
  static inline Sum combine(Sum high, Sum low) { return vaddq_s32(vshlq_n_s32(high, 7), low); }
  static inline void store(float* out, Sum sum, const DotTerm& term, const float* factor, bool add) {
    const float32x4_t dot = vcvtq_f32_s32(vaddq_s32(sum, vdupq_n_s32(term.start)));
    float32x4_t result = vfmaq_f32(vdupq_n_f32(term.bias), dot, vdupq_n_f32(term.unit));
    if (factor) result = vmulq_f32(result, vld1q_f32(factor));
    if (add) result = vaddq_f32(result, vld1q_f32(out));
    vst1q_f32(out, result);
  }
};

}  // namespace

void tile_dot_neon(const TileDot& dot) { tile_dot<Neon>(dot); }

}  // namespace veloxquant::kernels
#endif
