// From a byte a code to planes of power-of-two width and to bit strings, the reverse of what decode.cc unpacks. Planes:
// vectors merge neighbours, the codes of a 16-bit lane, then those of a 32-bit lane, until a lane holds one byte.
// Strings: the same inside words of eight codes.
#include <cstring>

#include "core/check.h"
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
    hn::StoreU(low_bytes(d16, hn::Or(pairs, hn::ShiftRight<4>(pairs))), hn::Rebind<uint8_t, decltype(d16)>(), out);
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
  if constexpr (kLanes > 8) i = pack_vectors<kWidth>(hn::ScalableTag<uint8_t>(), codes, i, n, shift, out);
  if constexpr (kLanes > 4) i = pack_vectors<kWidth>(hn::CappedTag<uint8_t, 32>(), codes, i, n, shift, out);
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

// --- bit strings ---------------------------------------------------------------------------------

/// A word of fields of `kWidth` bits, each at the start of a cell of `kCell` bits: two cells become one.
template <int kWidth, int kCell>
HWY_INLINE uint64_t merged(uint64_t fields) {
  constexpr uint64_t kEven = ((uint64_t{1} << kWidth) - 1) * (~uint64_t{0} / ((uint64_t{1} << 2 * kCell) - 1));
  return (fields & kEven) | (fields >> kCell & kEven) << kWidth;
}

/// The low kBits bits of eight codes as one string.
template <int kBits>
HWY_INLINE uint64_t string_of(uint64_t codes) {
#if HWY_ARCH_X86_64 && \
    (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL)  // some processors with AVX2 take hundreds of cycles for it
  return _pext_u64(codes, ((uint64_t{1} << kBits) - 1) * 0x0101010101010101u);
#else
  constexpr uint64_t kFour = (uint64_t{1} << 4 * kBits) - 1;
  const uint64_t fours = merged<2 * kBits, 16>(merged<kBits, 8>(codes));
  return (fours & kFour) | (fours >> 32 & kFour) << 4 * kBits;
#endif
}

HWY_INLINE uint64_t load_word(const uint8_t* codes, size_t count) {
  uint64_t word = 0;  // little-endian, as everything stored
  std::memcpy(&word, codes, count);
  return word;
}

template <int kBits>
HWY_NOINLINE void pack_string(const uint8_t* codes, int n, int shift, std::byte* out) {
  constexpr int kWholeWord = (64 + kBits - 1) / kBits;  // codes that leave room for 8 bytes
  for (; n >= kWholeWord; n -= 8, codes += 8, out += kBits) {
    const uint64_t word = string_of<kBits>(load_word(codes, 8) >> shift);
    std::memcpy(out, &word, 8);
  }
  for (; n >= 8; n -= 8, codes += 8, out += kBits) {
    const uint64_t word = string_of<kBits>(load_word(codes, 8) >> shift);
    std::memcpy(out, &word, kBits);
  }
  if (n == 0) return;
  const uint64_t word = string_of<kBits>(load_word(codes, static_cast<size_t>(n)) >> shift);
  std::memcpy(out, &word, static_cast<size_t>((n * kBits + 7) / 8));
}

void pack_bit_string(const uint8_t* codes, int n, int shift, int bits, std::byte* out) {
  VQ_CHECK(bits >= 1 && bits <= 8);
  constexpr void (*kPack[])(const uint8_t*, int, int, std::byte*) = {nullptr,        pack_string<1>, pack_string<2>,
                                                                     pack_string<3>, pack_string<4>, pack_string<5>,
                                                                     pack_string<6>, pack_string<7>, pack_string<8>};
  kPack[bits](codes, n, shift, out);
}

}  // namespace veloxquant::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace veloxquant::kernels {

HWY_EXPORT(pack_plane);
HWY_EXPORT(pack_bit_string);

void pack_plane(const uint8_t* codes, int64_t ld, int runs, int n, int shift, int width, std::byte* out,
                int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(pack_plane)(codes, ld, runs, n, shift, width, out, out_stride);
}
void pack_bit_string(const uint8_t* codes, int n, int shift, int bits, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(pack_bit_string)(codes, n, shift, bits, out);
}

}  // namespace veloxquant::kernels
#endif  // HWY_ONCE
