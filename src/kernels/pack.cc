// From a byte a code to planes of power-of-two width, the reverse of what decode.cc unpacks. Vectors merge neighbours:
// the codes of a 16-bit lane, then those of a 32-bit lane, until a lane holds one byte.
#include "kernels/kernels.h"
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pack.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace veloxquant::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
/// A vector of codes, already shifted, as kWidth / 8 as many bytes.
template <int kWidth, class D>
HWY_INLINE void pack_vector(D d, hn::Vec<D> codes, uint8_t* out) {
  const hn::Repartition<uint16_t, D> d16;
  const hn::Repartition<uint32_t, D> d32;
  if constexpr (kWidth == 1) {
    hn::StoreMaskBits(d, hn::TestBit(codes, hn::Set(d, uint8_t{1})), out);
  } else if constexpr (kWidth == 2) {
    const auto pairs = hn::And(hn::BitCast(d16, codes), hn::Set(d16, uint16_t{0x0303}));
    const auto nibbles = hn::And(hn::Or(pairs, hn::ShiftRight<6>(pairs)), hn::Set(d16, uint16_t{0xf}));
    const auto fours = hn::BitCast(d32, nibbles);
    hn::StoreU(low_bytes(d32, hn::Or(fours, hn::ShiftRight<12>(fours))), hn::Rebind<uint8_t, decltype(d32)>(), out);
  } else if constexpr (kWidth == 4) {
    const auto pairs = hn::And(hn::BitCast(d16, codes), hn::Set(d16, uint16_t{0x0f0f}));
    hn::StoreU(hn::TruncateTo(hn::Rebind<uint8_t, decltype(d16)>(), hn::Or(pairs, hn::ShiftRight<4>(pairs))),
               hn::Rebind<uint8_t, decltype(d16)>(), out);
  } else {
    hn::StoreU(codes, d, out);
  }
}

/// As many whole vectors of D as n codes hold, from code i on; returns how far it came.
template <int kWidth, class D>
HWY_INLINE int pack_vectors(D d, const uint8_t* codes, int i, int n, int shift, uint8_t* out) {
  const hn::Repartition<uint16_t, D> d16;
  constexpr int kCodes = static_cast<int>(hn::MaxLanes(D()));
  for (; i + kCodes <= n; i += kCodes) {
    const auto pairs = hn::BitCast(d16, hn::LoadU(d, codes + i));
    pack_vector<kWidth>(d, hn::BitCast(d, hn::ShiftRightSame(pairs, shift)), out + i * kWidth / 8);
  }
  return i;
}
#endif

template <int kWidth>
HWY_INLINE void pack_run(const uint8_t* codes, int n, int shift, uint8_t* out) {
  constexpr int kPerByte = 8 / kWidth;
  constexpr unsigned kMask = (1u << kWidth) - 1;
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kLanes > 4) i = pack_vectors<kWidth>(hn::ScalableTag<uint8_t>(), codes, i, n, shift, out);
  i = pack_vectors<kWidth>(hn::FixedTag<uint8_t, 16>(), codes, i, n, shift, out);
#endif
  for (; i < n; i += kPerByte) {
    unsigned byte = 0;
    for (int k = 0; k < kPerByte && i + k < n; ++k) byte |= (unsigned{codes[i + k]} >> shift & kMask) << (k * kWidth);
    out[i / kPerByte] = static_cast<uint8_t>(byte);
  }
}

template <int kWidth>
HWY_NOINLINE void pack_runs(const uint8_t* codes, int64_t ld, int runs, int n, int shift, uint8_t* out,
                            int64_t out_stride) {
  for (int run = 0; run < runs; ++run) pack_run<kWidth>(codes + run * ld, n, shift, out + run * out_stride);
}

void pack_plane(const uint8_t* codes, int64_t ld, int runs, int n, int shift, int width, std::byte* out,
                int64_t out_stride) {
  uint8_t* bytes = reinterpret_cast<uint8_t*>(out);
  switch (width) {
    case 1:
      return pack_runs<1>(codes, ld, runs, n, shift, bytes, out_stride);
    case 2:
      return pack_runs<2>(codes, ld, runs, n, shift, bytes, out_stride);
    case 4:
      return pack_runs<4>(codes, ld, runs, n, shift, bytes, out_stride);
    default:
      return pack_runs<8>(codes, ld, runs, n, shift, bytes, out_stride);
  }
}

}  // namespace veloxquant::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace veloxquant::kernels {

HWY_EXPORT(pack_plane);

void pack_plane(const uint8_t* codes, int64_t ld, int runs, int n, int shift, int width, std::byte* out,
                int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(pack_plane)(codes, ld, runs, n, shift, width, out, out_stride);
}

}  // namespace veloxquant::kernels
#endif  // HWY_ONCE
