// Element by element: conversions, scaling, softcap, biases, one softmax step. Only softmax_step has a sum; its order
// depends on n alone: lane l of one vector adds the elements l, l + lanes, ..., then the lanes are added in Highway's
// order.
#include <limits>

#include "kernels/kernels.h"
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace veloxquant::kernels::HWY_NAMESPACE {


/// x[i] = function(x[i]), the last partial vector through the same instructions.
template <class Function>
HWY_INLINE void for_each_vector(float* x, int64_t n, Function function) {
  const F32 d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(function(hn::LoadU(d, x + i)), d, x + i);
  const int rest = static_cast<int>(n - i);
  if (rest > 0) store_n(function(load_n(d, x + i, rest)), d, x + i, rest);
}

/// out[i] = function(x[i]) from vectors of D to vectors of To.
template <class D, class To, class Function>
HWY_INLINE void convert(const hn::TFromD<D>* x, int64_t n, hn::TFromD<To>* out, Function function) {
  const D d;
  const To to;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(function(hn::LoadU(d, x + i)), to, out + i);
  const int rest = static_cast<int>(n - i);
  if (rest > 0) store_n(function(load_n(d, x + i, rest)), to, out + i, rest);
}

void scale(float* x, int64_t n, float factor) {
  const VF32 factors = hn::Set(F32(), factor);
  for_each_vector(x, n, [&](VF32 v) { return hn::Mul(v, factors); });
}

void softcap(float* x, int n, float cap) {
  const F32 d;
  const VF32 caps = hn::Set(d, cap);
  for_each_vector(x, n, [&](VF32 v) { return hn::Mul(caps, hn::Tanh(d, hn::Div(v, caps))); });
}

float row_max(const float* x, int n, float least) {
  const F32 d;
  VF32 max = hn::Set(d, least), more[3] = {max, max, max};  // one chain would wait for itself
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    max = hn::Max(max, hn::LoadU(d, x + i));
    for (int v = 0; v < 3; ++v) more[v] = hn::Max(more[v], hn::LoadU(d, x + i + (v + 1) * kLanes));
  }
  max = hn::Max(hn::Max(max, more[0]), hn::Max(more[1], more[2]));
  for (; i + kLanes <= n; i += kLanes) max = hn::Max(max, hn::LoadU(d, x + i));
  float result = hn::GetLane(hn::MaxOfLanes(d, max));
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

void add(float* x, int n, const float* y) {
  const F32 d;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, x + i);
  for (; i < n; ++i) x[i] += y[i];
}

void subtract_distances(float* x, int n, float slope, int distance) {
  const F32 d;
  const I32 di;
  const VF32 slopes = hn::Set(d, slope);
  auto distances = hn::Sub(hn::Set(di, distance), hn::Iota(di, 0));
  for_each_vector(x, n, [&](VF32 v) {
    const VF32 penalty = hn::Mul(slopes, hn::ConvertTo(d, distances));
    distances = hn::Sub(distances, hn::Set(di, kLanes));
    return hn::Sub(v, penalty);
  });
}

inline constexpr float kLeastExponent = -87.3f;  // below, exp is subnormal, and arithmetic with it slow

/// exp of kLeastExponent <= x <= 0 to about one unit in the last place: Highway's reduction and polynomial without what
/// other arguments need, which is half of its time.
HWY_INLINE VF32 exp_of_negative(VF32 x) {
  const F32 d;
  const I32 di;
  const auto power = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504f)));
  const VF32 whole = hn::ConvertTo(d, power);
  VF32 r = hn::MulAdd(whole, hn::Set(d, -0.693145751953125f), x);
  r = hn::MulAdd(whole, hn::Set(d, -1.428606765330187045e-6f), r);
  const VF32 r2 = hn::Mul(r, r);
  const VF32 low = hn::MulAdd(r, hn::Set(d, 0.166666671633720397949219f), hn::Set(d, 0.5f));
  const VF32 middle =
      hn::MulAdd(r, hn::Set(d, 0.00833336077630519866943359f), hn::Set(d, 0.0416664853692054748535156f));
  const VF32 high =
      hn::MulAdd(r, hn::Set(d, 0.000198527617612853646278381f), hn::Set(d, 0.00139304355252534151077271f));
  const VF32 tail = hn::MulAdd(hn::MulAdd(high, r2, middle), r2, low);
  const VF32 mantissa = hn::Add(hn::MulAdd(tail, r2, r), hn::Set(d, 1.0f));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, mantissa), hn::ShiftLeft<23>(power)));
}

float softmax_step(float* x, int n, float* max) {
  const F32 d;
  const float new_max = row_max(x, n, *max);
  if (new_max == -std::numeric_limits<float>::infinity()) {  // the difference below would be NaN
    for (int i = 0; i < n; ++i) x[i] = 0.0f;
    return 0.0f;
  }
  *max = new_max;
  const VF32 maxima = hn::Set(d, new_max);
  const VF32 least = hn::Set(d, kLeastExponent);
  const auto weight = [&](VF32 v) {
    const VF32 difference = hn::Sub(v, maxima);
    return hn::IfThenElseZero(hn::Ge(difference, least), exp_of_negative(hn::Max(difference, least)));
  };
  VF32 sum = hn::Zero(d);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF32 weights = weight(hn::LoadU(d, x + i));
    hn::StoreU(weights, d, x + i);
    sum = hn::Add(sum, weights);
  }
  if (i < n) {
    const VF32 weights = weight(load_n(d, x + i, n - i));
    store_n(weights, d, x + i, n - i);
    sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(n - i)), weights));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

bool all_finite(const float* x, int64_t n) {
  const F32 d;
  const I32 di;
  const auto magnitude = [&](VF32 v) { return hn::BitCast(di, hn::Abs(v)); };
  auto largest = hn::Zero(di);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) largest = hn::Max(largest, magnitude(hn::LoadU(d, x + i)));
  if (i < n) largest = hn::Max(largest, magnitude(load_n(d, x + i, static_cast<int>(n - i))));
  return hn::AllFalse(di, hn::Gt(largest, hn::Set(di, 0x7f7fffff)));
}

void from_f32(const float* x, int64_t n, DType to, void* out) {
  if (to == DType::f32) {
    if (n > 0) std::memcpy(out, x, static_cast<size_t>(n) * sizeof(float));
  } else if (to == DType::f16) {
    convert<F32, U16>(x, n, static_cast<uint16_t*>(out), [](VF32 v) { return f16_from_f32(v); });
  } else {
    convert<F32, U16>(x, n, static_cast<uint16_t*>(out), [](VF32 v) { return bf16_from_f32(v); });
  }
}

void to_f32(const void* x, int64_t n, DType from, float* out) {
  if (from == DType::f32) {
    if (n > 0) std::memcpy(out, x, static_cast<size_t>(n) * sizeof(float));
  } else if (from == DType::f16) {
    convert<U16, F32>(static_cast<const uint16_t*>(x), n, out, [](VU16 v) { return f32_from_f16(v); });
  } else {
    convert<U16, F32>(static_cast<const uint16_t*>(x), n, out, [](VU16 v) { return f32_from_bf16(v); });
  }
}

}  // namespace veloxquant::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace veloxquant::kernels {

HWY_EXPORT(scale);
HWY_EXPORT(softcap);
HWY_EXPORT(add);
HWY_EXPORT(subtract_distances);
HWY_EXPORT(softmax_step);
HWY_EXPORT(all_finite);
HWY_EXPORT(from_f32);
HWY_EXPORT(to_f32);

void scale(float* x, int64_t n, float factor) { HWY_DYNAMIC_DISPATCH(scale)(x, n, factor); }
void softcap(float* x, int n, float cap) { HWY_DYNAMIC_DISPATCH(softcap)(x, n, cap); }
void add(float* x, int n, const float* y) { HWY_DYNAMIC_DISPATCH(add)(x, n, y); }
void subtract_distances(float* x, int n, float slope, int distance) {
  HWY_DYNAMIC_DISPATCH(subtract_distances)(x, n, slope, distance);
}
float softmax_step(float* x, int n, float* max) { return HWY_DYNAMIC_DISPATCH(softmax_step)(x, n, max); }
bool all_finite(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(all_finite)(x, n); }
void from_f32(const float* x, int64_t n, DType to, void* out) { HWY_DYNAMIC_DISPATCH(from_f32)(x, n, to, out); }
void to_f32(const void* x, int64_t n, DType from, float* out) { HWY_DYNAMIC_DISPATCH(to_f32)(x, n, from, out); }

}  // namespace veloxquant::kernels
#endif  // HWY_ONCE
