// What the kernels share inside one Highway target: partial loads and stores that touch no byte outside the range, and
// conversions between fp32 and the 16-bit types that give the bits of core/half.h.
//
// Highway's own conversions are not enough: without F16C they round differently, and with it the payload of a NaN
// differs (core/half.h keeps it on the way to fp32 and drops it on the way to fp16).

// Highway includes this once per target, so an ordinary include guard would not do.
#if defined(VQ_KERNELS_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef VQ_KERNELS_SIMD_INL_H
#undef VQ_KERNELS_SIMD_INL_H
#else
#define VQ_KERNELS_SIMD_INL_H
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

// x86 from AVX2 on: masked memory accesses that do not touch the masked lanes, shifts by a count per lane, F16C.
#undef VQ_AVX2_OR_LATER
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define VQ_AVX2_OR_LATER 1
#else
#define VQ_AVX2_OR_LATER 0
#endif

HWY_BEFORE_NAMESPACE();
namespace veloxquant::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using VF32 = hn::Vec<F32>;
using VU32 = hn::Vec<U32>;
using VU16 = hn::Vec<U16>;

inline constexpr int kLanes = static_cast<int>(HWY_LANES(float));
/// Vectors that register blocks may fill.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif

/// The first n < kLanes lanes from memory, the others zero.
template <class D>
HWY_INLINE hn::Vec<D> load_n(D d, const hn::TFromD<D>* p, int n) {
#if VQ_AVX2_OR_LATER
  if constexpr (sizeof(hn::TFromD<D>) == 4) return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, p);
#endif
  HWY_ALIGN hn::TFromD<D> lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return hn::Load(d, lanes);
}

/// Stores the first n < kLanes lanes.
template <class D>
HWY_INLINE void store_n(hn::Vec<D> v, D d, hn::TFromD<D>* p, int n) {
#if VQ_AVX2_OR_LATER
  if constexpr (sizeof(hn::TFromD<D>) == 4) return hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(n)), d, p);
#endif
  HWY_ALIGN hn::TFromD<D> lanes[kLanes];
  hn::Store(v, d, lanes);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

/// core/half.h's f32_from_f16, a lane each.
HWY_INLINE VF32 f32_from_f16_integer(VU16 half) {
  const F32 d;
  const U32 du;
  const I32 di;
  const VU32 bits = hn::PromoteTo(du, half);
  const VU32 sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const VU32 magnitude = hn::And(bits, hn::Set(du, 0x7fffu));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const VU32 shifted = hn::ShiftLeft<13>(magnitude);
  const VU32 normal = hn::Add(shifted, hn::Set(du, 0x38000000u));
  const VU32 special = hn::Or(shifted, hn::Set(du, 0x7f800000u));
  const VF32 tiny = hn::Mul(hn::ConvertTo(d, signed_magnitude), hn::Set(d, 0x1p-24f));
  const auto is_special = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7bff)));
  const auto is_tiny = hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x400)));
  const VU32 value = hn::IfThenElse(is_tiny, hn::BitCast(du, tiny), hn::IfThenElse(is_special, special, normal));
  return hn::BitCast(d, hn::Or(value, sign));
}

/// core/half.h's f16_from_f32, a lane each.
HWY_INLINE VU16 f16_from_f32_integer(VF32 value) {
  const F32 d;
  const U32 du;
  const I32 di;
  const VU32 bits = hn::BitCast(du, value);
  const VU32 sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const VU32 magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const VU32 odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const VU32 rounded = hn::Add(hn::Add(magnitude, hn::Set(du, 0xfffu - 0x38000000u)), odd);
  const VU32 normal = hn::ShiftRight<13>(rounded);
  const VU32 tiny =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f))), hn::Set(du, 0x3f000000u));
  const auto is_tiny = hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x38800000)));
  const auto is_infinite = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x477fefff)));
  const auto is_nan = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7f800000)));
  VU32 half = hn::IfThenElse(is_tiny, tiny, normal);
  half = hn::IfThenElse(is_infinite, hn::Set(du, 0x7c00u), half);
  half = hn::IfThenElse(is_nan, hn::Set(du, 0x7e00u), half);
  return hn::DemoteTo(U16(), hn::BitCast(di, hn::Or(half, sign)));
}

HWY_INLINE VF32 f32_from_f16(VU16 half) {
#if VQ_AVX2_OR_LATER
  const F32 d;
  const VF32 value = hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, F32>(), half));
  if (HWY_LIKELY(hn::AllFalse(d, hn::IsNaN(value)))) return value;
#endif
  return f32_from_f16_integer(half);
}

HWY_INLINE VU16 f16_from_f32(VF32 value) {
#if VQ_AVX2_OR_LATER
  const F32 d;
  if (HWY_LIKELY(hn::AllFalse(d, hn::IsNaN(value)))) {
    return hn::BitCast(U16(), hn::DemoteTo(hn::Rebind<hwy::float16_t, F32>(), value));
  }
#endif
  return f16_from_f32_integer(value);
}

/// The low byte of every lane of D, of 16 or 32 bits. TruncateTo would be the word for it, but Highway 1.0.3 has wrong
/// permutations there for AVX3_DL.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint8_t, D>> low_bytes(D d, hn::Vec<D> v) {
  const hn::RebindToSigned<D> di;
  return hn::DemoteTo(hn::Rebind<uint8_t, D>(), hn::BitCast(di, hn::And(v, hn::Set(d, hn::TFromD<D>{0xff}))));
}

HWY_INLINE VF32 f32_from_bf16(VU16 value) { return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), value))); }

HWY_INLINE VU16 bf16_from_f32(VF32 value) {
  const U32 du;
  const I32 di;
  const VU32 bits = hn::BitCast(du, value);
  const VU32 high = hn::ShiftRight<16>(bits);
  const VU32 odd = hn::And(high, hn::Set(du, 1u));
  const VU32 rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  const VU32 result = hn::IfThenElse(is_nan, hn::Or(high, hn::Set(du, 0x40u)), rounded);
  return hn::DemoteTo(U16(), hn::BitCast(di, result));
}

}  // namespace veloxquant::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // VQ_KERNELS_SIMD_INL_H
