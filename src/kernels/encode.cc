// From fp32 rows to codes of a byte each and their parameters. What is computed here is stored, so it has equal bits on
// every instruction set: divisions are divisions, products and sums are rounded one by one (no fused multiply-add), and
// sums are 16 interleaved partial sums added by one fixed tree, in as many vectors as 16 lanes take.
//
// Least and largest values of a group: of zeros that differ in their sign, the one that comes first counts, in the
// order of 16 interleaved partial results (element 0, 16, 32, .., 1, 17, ..) and then the elements behind the last
// whole 16.
#include <algorithm>
#include <bit>
#include <cfloat>
#include <limits>
#include <type_traits>

#include "core/check.h"
#include "core/half.h"
#include "kernels/affine_ends.h"
#include "kernels/kernels.h"
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/encode.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace veloxquant::kernels::HWY_NAMESPACE {

using Bytes = hn::Rebind<uint8_t, U32>;

inline constexpr int kWide = 16;  // lanes of the fixed order
inline constexpr int kParts = kWide / kLanes;

/// a < b ? a : b and a > b ? a : b: b for equal zeros and for NaN. MINPS and MAXPS are just that.
HWY_INLINE VF32 lesser(VF32 a, VF32 b) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return hn::Min(a, b);
#else
  return hn::IfThenElse(hn::Lt(a, b), a, b);
#endif
}
HWY_INLINE VF32 larger(VF32 a, VF32 b) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return hn::Max(a, b);
#else
  return hn::IfThenElse(hn::Gt(a, b), a, b);
#endif
}

/// The low byte of each lane.
HWY_INLINE void store_codes(VU32 codes, uint8_t* out) { hn::StoreU(low_bytes(U32(), codes), Bytes(), out); }
HWY_INLINE void store_codes_n(VU32 codes, uint8_t* out, int n) {
  HWY_ALIGN uint32_t lanes[kLanes];
  hn::Store(codes, U32(), lanes);
  for (int i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(lanes[i]);
}

/// The low bytes of four vectors: merged in the lanes of one, sorted in its blocks, then by its blocks. Higher bytes
/// must be zero.
HWY_INLINE void store_four(const VU32 (&codes)[4], uint8_t* out) {
#if VQ_AVX2_OR_LATER
  const U32 du;
  const hn::Repartition<uint8_t, U32> bytes;
  HWY_ALIGN static constexpr uint8_t kTurn[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  HWY_ALIGN uint32_t order[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) order[lane] = lane % (kLanes / 4) * 4 + lane / (kLanes / 4);
  const VU32 low = hn::Or(codes[0], hn::ShiftLeft<8>(codes[1]));
  const VU32 high = hn::Or(hn::ShiftLeft<16>(codes[2]), hn::ShiftLeft<24>(codes[3]));
  const auto turned = hn::TableLookupBytes(hn::BitCast(bytes, hn::Or(low, high)), hn::LoadDup128(bytes, kTurn));
  const VU32 sorted = hn::TableLookupLanes(hn::BitCast(du, turned), hn::SetTableIndices(du, order));
  hn::StoreU(hn::BitCast(bytes, sorted), bytes, out);
#else
  for (int v = 0; v < 4; ++v) store_codes(codes[v], out + v * kLanes);
#endif
}

/// codes[i] = the low byte of code(x)[i].
template <class Code>
HWY_INLINE void code_row(const float* x, int n, uint8_t* codes, Code code) {
  const F32 d;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store_codes(code(hn::LoadU(d, x + i)), codes + i);
  if (i < n) store_codes_n(code(load_n(d, x + i, n - i)), codes + i, n - i);
}

// --- affine --------------------------------------------------------------------------------------

/// The vectors of params and what codes are computed with, a group a lane.
struct AffineLanes {
  VF32 zero, scale, factor;
  VU32 pair;  ///< zero | scale << 16, as stored
};

HWY_NOINLINE VF32 wide_steps(VF32 low, VF32 high, VF32 step, float last) {
  const F32 d;
  HWY_ALIGN float lows[kLanes], highs[kLanes], steps[kLanes];
  hn::Store(low, d, lows);
  hn::Store(high, d, highs);
  hn::Store(step, d, steps);
  for (int i = 0; i < kLanes; ++i) {
    if (!(highs[i] - lows[i] <= FLT_MAX)) steps[i] = wide_step({lows[i], highs[i]}, last);
  }
  return hn::Load(d, steps);
}

/// Parameters of groups beyond fp16, told by the sign of their scale. Their differences may overflow, so all numbers
/// are halved, which changes no quotient.
template <class Mask>
HWY_NOINLINE void widen(VF32 low, VF32 step, Mask wide, AffineLanes* lanes) {
  const F32 d;
  const U32 du;
  const VU16 zero = bf16_from_f32(low), scale = bf16_from_f32(step);
  const VF32 half = hn::Set(d, 0.5f);
  lanes->zero = hn::IfThenElse(wide, hn::Mul(f32_from_bf16(zero), half), lanes->zero);
  lanes->scale = hn::IfThenElse(wide, hn::Mul(f32_from_bf16(scale), half), lanes->scale);
  lanes->factor = hn::IfThenElse(wide, half, lanes->factor);
  const VU32 pair = hn::Or(hn::PromoteTo(du, zero), hn::ShiftLeft<16>(hn::PromoteTo(du, scale)));
  lanes->pair = hn::IfThenElse(hn::RebindMask(du, wide), hn::Or(pair, hn::Set(du, 0x80000000u)), lanes->pair);
}

HWY_INLINE AffineLanes affine_lanes(VF32 low, VF32 high, float last) {
  const F32 d;
  const U32 du;
  const VF32 largest = hn::Set(d, 65504.0f), range = hn::Sub(high, low);
  VF32 step = hn::Div(range, hn::Set(d, last));
  if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Le(range, hn::Set(d, FLT_MAX))))) step = wide_steps(low, high, step, last);
  const VU16 zero = f16_from_f32(low), scale = f16_from_f32(step);
  AffineLanes lanes{f32_from_f16(zero), f32_from_f16(scale), hn::Set(d, 1.0f),
                    hn::Or(hn::PromoteTo(du, zero), hn::ShiftLeft<16>(hn::PromoteTo(du, scale)))};
  const auto wide = hn::Or(hn::Gt(hn::Abs(low), largest), hn::Gt(step, largest));
  if (HWY_UNLIKELY(!hn::AllFalse(d, wide))) widen(low, step, wide, &lanes);
  // Codes of groups without a step are 0, what dividing by infinity gives.
  const auto has_step = hn::Gt(lanes.scale, hn::Zero(d));
  lanes.scale = hn::IfThenElse(has_step, lanes.scale, hn::Set(d, std::numeric_limits<float>::infinity()));
  return lanes;
}

/// The code is the low byte: adding 2^23 rounds to nearest even.
HWY_INLINE VU32 affine_code(VF32 x, VF32 zero, VF32 scale, VF32 factor, VF32 last) {
  const F32 d;
  const VF32 quotient = hn::Div(hn::Sub(hn::Mul(x, factor), zero), scale);
  return hn::BitCast(U32(), hn::Add(lesser(larger(quotient, hn::Zero(d)), last), hn::Set(d, 0x1p23f)));
}

/// Lane 0 of the result is the lanes' first least (or largest) value: neighbours first, so that order is kept.
template <class Pick>
HWY_INLINE float pick_lane(VF32 v, [[maybe_unused]] Pick pick) {
#if HWY_TARGET != HWY_SCALAR
  v = pick(hn::Shuffle2301(v), v);
  v = pick(hn::Shuffle1032(v), v);
  if constexpr (kLanes >= 8) v = pick(hn::SwapAdjacentBlocks(v), v);
  if constexpr (kLanes == 16) v = pick(hn::ConcatLowerUpper(F32(), v, v), v);
#endif
  return hn::GetLane(v);
}

/// Least or largest value of one group of n values; n a multiple of 16 in the first form.
template <class Pick>
HWY_INLINE float pick_of_whole(const float* x, int n, Pick pick) {
  const F32 d;
  VF32 best[kParts];
  for (int p = 0; p < kParts; ++p) best[p] = hn::LoadU(d, x + p * kLanes);
  for (int i = kWide; i < n; i += kWide) {
    for (int p = 0; p < kParts; ++p) best[p] = pick(hn::LoadU(d, x + i + p * kLanes), best[p]);
  }
  float result = pick_lane(best[0], pick);
  for (int p = 1; p < kParts; ++p) {
    const float next = pick_lane(best[p], pick);
    result = hn::GetLane(pick(hn::Set(d, next), hn::Set(d, result)));
  }
  return result;
}

template <class Pick>
HWY_NOINLINE float pick_of_any(const float* x, int n, Pick pick) {
  const F32 d;
  const int whole = n / kWide * kWide;
  float result = whole > 0 ? pick_of_whole(x, whole, pick) : x[0];
  for (int i = whole; i < n; ++i) result = hn::GetLane(pick(hn::Set(d, x[i]), hn::Set(d, result)));
  return result;
}

template <bool kWhole>
HWY_INLINE AffineEnds ends_of(const float* x, int n) {
  const auto least = [](VF32 a, VF32 b) { return lesser(a, b); };
  const auto largest = [](VF32 a, VF32 b) { return larger(a, b); };
  if constexpr (kWhole) return {pick_of_whole(x, n, least), pick_of_whole(x, n, largest)};
  return {pick_of_any(x, n, least), pick_of_any(x, n, largest)};
}

struct AffineRows {
  const float* x;
  int64_t ldx;
  int rows, dim, group, bits;
  uint8_t* codes;
  uint16_t* params;
};

/// A place in the groups of all rows, one after the other.
class GroupCursor {
 public:
  GroupCursor(const AffineRows& p, int group) : p_(p), group_(group), x_(p.x), codes_(p.codes) {}
  const float* x() const { return x_ + first_; }
  uint8_t* codes() const { return codes_ + first_; }
  int size() const { return std::min(group_, p_.dim - first_); }
  void next() {
    first_ += group_;
    if (first_ < p_.dim) return;
    first_ = 0;
    x_ += p_.ldx;
    codes_ += p_.dim;
  }

 private:
  const AffineRows& p_;
  int group_;
  const float* x_;
  uint8_t* codes_;
  int first_ = 0;
};

/// kGroup is the group known at compile time, a multiple of 16 that divides dim; 0: any.
template <int kGroup>
HWY_NOINLINE void encode_affine_groups(AffineRows p) {
  constexpr int kBatch = 32;
  constexpr bool kWhole = kGroup > 0;
  const F32 d;
  const float last = static_cast<float>((1 << p.bits) - 1);
  const VF32 lasts = hn::Set(d, last);
  const int group = kWhole ? kGroup : p.group;
  const int64_t groups = int64_t{(p.dim + group - 1) / group} * p.rows;
  GroupCursor read(p, group), write(p, group);
  for (int64_t first = 0; first < groups; first += kBatch) {
    const int count = static_cast<int>(std::min<int64_t>(kBatch, groups - first));
    HWY_ALIGN float low[kBatch] = {}, high[kBatch] = {}, factor[kBatch];
    HWY_ALIGN uint32_t pair[kBatch];
    for (int i = 0; i < count; ++i, read.next()) {
      AffineEnds ends = ends_of<kWhole>(read.x(), kWhole ? kGroup : read.size());
      if (p.bits == 1) ends = two_means(read.x(), 1, read.size(), ends);
      low[i] = ends.low;
      high[i] = ends.high;
    }
    for (int i = 0; i < count; i += kLanes) {
      const AffineLanes lanes = affine_lanes(hn::Load(d, low + i), hn::Load(d, high + i), last);
      hn::Store(lanes.zero, d, low + i);
      hn::Store(lanes.scale, d, high + i);
      hn::Store(lanes.factor, d, factor + i);
      hn::Store(lanes.pair, U32(), pair + i);
    }
    std::memcpy(p.params + 2 * first, pair, static_cast<size_t>(count) * sizeof pair[0]);
    for (int i = 0; i < count; ++i, write.next()) {
      const VF32 zeros = hn::Set(d, low[i]), scales = hn::Set(d, high[i]), factors = hn::Set(d, factor[i]);
      code_row(write.x(), kWhole ? kGroup : write.size(), write.codes(),
               [&](VF32 x) { return affine_code(x, zeros, scales, factors, lasts); });
    }
  }
}

void encode_affine_rows(const float* x, int64_t ldx, int rows, int dim, int group, int bits, uint8_t* codes,
                        uint16_t* params) {
  VQ_CHECK(bits >= 1 && bits <= 8 && group >= 1);
  const AffineRows p{x, ldx, rows, dim, group, bits, codes, params};
  if (group == 32 && dim % 32 == 0) return encode_affine_groups<32>(p);
  if (group == 64 && dim % 64 == 0) return encode_affine_groups<64>(p);
  if (group == 128 && dim % 128 == 0) return encode_affine_groups<128>(p);
  encode_affine_groups<0>(p);
}

/// A vector of channels, in each lane one group of all rows.
struct AffineChannels {
  const float* x;
  int64_t ldx;
  int rows;
  int channels;  ///< lanes in use
  uint8_t* codes;
  int64_t ldc;
};

template <bool kFull>
HWY_INLINE VF32 load_channels(const AffineChannels& p, int row) {
  const float* from = p.x + row * p.ldx;
  return kFull ? hn::LoadU(F32(), from) : load_n(F32(), from, p.channels);
}

/// Least and largest values; elements of the first and of the last eight partial results in a chain each.
template <bool kFull>
HWY_INLINE void channel_ends(const AffineChannels& p, VF32* low, VF32* high) {
  const int whole = p.rows / kWide * kWide;
  *low = *high = load_channels<kFull>(p, 0);
  if (whole > 0) {
    VF32 low8 = load_channels<kFull>(p, kWide / 2), high8 = low8;
    for (int lane = 0; lane < kWide / 2; ++lane) {
      for (int r = lane; r < whole; r += kWide) {
        const VF32 v = load_channels<kFull>(p, r), v8 = load_channels<kFull>(p, r + kWide / 2);
        *low = lesser(v, *low);
        *high = larger(v, *high);
        low8 = lesser(v8, low8);
        high8 = larger(v8, high8);
      }
    }
    *low = lesser(low8, *low);
    *high = larger(high8, *high);
  }
  for (int r = whole; r < p.rows; ++r) {
    const VF32 v = load_channels<kFull>(p, r);
    *low = lesser(v, *low);
    *high = larger(v, *high);
  }
}

HWY_NOINLINE void channel_means(const AffineChannels& p, VF32* low, VF32* high) {
  const F32 d;
  HWY_ALIGN float lows[kLanes], highs[kLanes];
  hn::Store(*low, d, lows);
  hn::Store(*high, d, highs);
  for (int i = 0; i < p.channels; ++i) {
    const AffineEnds ends = two_means(p.x + i, p.ldx, p.rows, {lows[i], highs[i]});
    lows[i] = ends.low;
    highs[i] = ends.high;
  }
  *low = hn::Load(d, lows);
  *high = hn::Load(d, highs);
}

#if HWY_TARGET != HWY_SCALAR
/// 16 bytes a channel from four vectors, of which lane c of vector v holds bytes 4v .. 4v + 3 of channel c.
HWY_INLINE void store_channels(const VU32 (&words)[4], uint8_t* out, int64_t ld) {
  const U32 du;
  const hn::Repartition<uint64_t, U32> pairs;
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(du, words[0], words[1]));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(du, words[0], words[1]));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(du, words[2], words[3]));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(du, words[2], words[3]));
  HWY_ALIGN uint64_t turned[4][kLanes / 2];  // [channel mod 4][block]
  hn::Store(hn::InterleaveLower(pairs, low01, low23), pairs, turned[0]);
  hn::Store(hn::InterleaveUpper(pairs, low01, low23), pairs, turned[1]);
  hn::Store(hn::InterleaveLower(pairs, high01, high23), pairs, turned[2]);
  hn::Store(hn::InterleaveUpper(pairs, high01, high23), pairs, turned[3]);
  for (int c = 0; c < kLanes; ++c) std::memcpy(out + c * ld, &turned[c % 4][c / 4 * 2], 16);
}
#endif

template <bool kFull>
HWY_INLINE void channel_codes(const AffineChannels& p, const AffineLanes& lanes, float last) {
  const F32 d;
  const VF32 lasts = hn::Set(d, last);
  const auto code = [&](int row) {
    return affine_code(load_channels<kFull>(p, row), lanes.zero, lanes.scale, lanes.factor, lasts);
  };
  int row = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; kFull && row + 16 <= p.rows; row += 16) {
    VU32 words[4];
    for (int w = 0; w < 4; ++w) {
      const int r = row + 4 * w;
      const VU32 even = hn::Or(hn::And(code(r), hn::Set(U32(), 0xffu)), hn::ShiftLeft<16>(code(r + 2)));
      const VU32 odd = hn::Or(hn::ShiftLeft<8>(code(r + 1)), hn::ShiftLeft<24>(code(r + 3)));
      words[w] = hn::Or(even, odd);
    }
    store_channels(words, p.codes + row, p.ldc);
  }
#endif
  for (; row < p.rows; ++row) {
    HWY_ALIGN uint32_t codes[kLanes];
    hn::Store(code(row), U32(), codes);
    for (int c = 0; c < p.channels; ++c) p.codes[c * p.ldc + row] = static_cast<uint8_t>(codes[c]);
  }
}

template <bool kFull>
HWY_NOINLINE void encode_channels(AffineChannels p, int bits, uint16_t* params) {
  const float last = static_cast<float>((1 << bits) - 1);
  VF32 low, high;
  channel_ends<kFull>(p, &low, &high);
  if (bits == 1) channel_means(p, &low, &high);
  const AffineLanes lanes = affine_lanes(low, high, last);
  HWY_ALIGN uint32_t pair[kLanes];
  hn::Store(lanes.pair, U32(), pair);
  std::memcpy(params, pair, static_cast<size_t>(p.channels) * sizeof pair[0]);
  channel_codes<kFull>(p, lanes, last);
}

void encode_affine_channels(const float* x, int64_t ldx, int rows, int dim, int bits, uint8_t* codes, int64_t ldc,
                            uint16_t* params) {
  VQ_CHECK(bits >= 1 && bits <= 8 && rows >= 1);
  int c = 0;
  for (; c + kLanes <= dim; c += kLanes) {
    encode_channels<true>({x + c, ldx, rows, kLanes, codes + c * ldc, ldc}, bits, params + 2 * c);
  }
  if (c < dim) encode_channels<false>({x + c, ldx, rows, dim - c, codes + c * ldc, ldc}, bits, params + 2 * c);
}

// --- int8 ----------------------------------------------------------------------------------------

HWY_INLINE float largest_magnitude(const float* x, int n) {
  const F32 d;
  VF32 largest = hn::Zero(d);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) largest = larger(hn::Abs(hn::LoadU(d, x + i)), largest);
  if (i < n) largest = larger(hn::Abs(load_n(d, x + i, n - i)), largest);
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

void encode_int8(const float* x, int64_t ldx, int rows, int dim, uint8_t* codes, uint16_t* scales) {
  constexpr float kLevels = 127;
  constexpr float kLeastScale = 0x1p-24f;      // the least fp16 number: a row of zeros must not divide by zero
  constexpr uint16_t kGreatestScale = 0x7bff;  // 65504; larger rows saturate
  const F32 d;
  const VF32 least = hn::Set(d, -kLevels), most = hn::Set(d, kLevels);
  for (int r = 0; r < rows; ++r, x += ldx, codes += dim) {
    const float largest = largest_magnitude(x, dim);
    const float step = std::max(largest / kLevels, kLeastScale);
    uint16_t stored = std::min(veloxquant::f16_from_f32(step), kGreatestScale);
    if (largest / veloxquant::f32_from_f16(stored) > kLevels && stored < kGreatestScale) ++stored;
    scales[r] = stored;
    const VF32 scale = hn::Set(d, veloxquant::f32_from_f16(stored));
    code_row(x, dim, codes, [&](VF32 v) {
      const VF32 clamped = lesser(larger(hn::Div(v, scale), least), most);
      return hn::BitCast(U32(), hn::Add(clamped, hn::Set(d, 0x1.8p23f)));  // the low byte: rounded to nearest even
    });
  }
}

// --- codebooks -----------------------------------------------------------------------------------

/// Sum of 16 lanes: halves first.
HWY_INLINE float sum_of(VF32 (&v)[kParts]) {
  for (int half = kParts / 2; half > 0; half /= 2) {
    for (int p = 0; p < half; ++p) v[p] = hn::Add(v[p], v[p + half]);
  }
  VF32 sum = v[0];
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kLanes == 16) sum = hn::Add(sum, hn::ConcatLowerUpper(F32(), sum, sum));
  if constexpr (kLanes >= 8) sum = hn::Add(sum, hn::SwapAdjacentBlocks(sum));
  sum = hn::Add(sum, hn::Shuffle1032(sum));
  sum = hn::Add(sum, hn::Shuffle2301(sum));
#endif
  return hn::GetLane(sum);
}

void inner_products(const float* a, int64_t lda, const float* b, int64_t ldb, int rows, int dim, float* products) {
  const F32 d;
  for (int r = 0; r < rows; ++r, a += lda, b += ldb) {
    VF32 sum[kParts];
    for (VF32& s : sum) s = hn::Zero(d);
    int i = 0;
    for (; i + kWide <= dim; i += kWide) {
      for (int p = 0; p < kParts; ++p) {
        const int at = i + p * kLanes;
        sum[p] = hn::Add(sum[p], hn::Mul(hn::LoadU(d, a + at), hn::LoadU(d, b + at)));
      }
    }
    for (int p = 0; i < dim; i += kLanes, ++p) {  // lanes without an element add 0 * 0, which changes no sum
      const int n = std::min(kLanes, dim - i);
      const VF32 product = n == kLanes ? hn::Mul(hn::LoadU(d, a + i), hn::LoadU(d, b + i))
                                       : hn::Mul(load_n(d, a + i, n), load_n(d, b + i, n));
      sum[p] = hn::Add(sum[p], product);
    }
    products[r] = sum_of(sum);
  }
}

/// A vector of table entries, 2^kBits of them; in registers where a permutation reaches them all.
template <int kBits>
HWY_INLINE VF32 look_up(const float* table, VU32 index) {
  const F32 d;
  if constexpr (VQ_AVX2_OR_LATER && (1 << kBits) <= kLanes) {
    return hn::TableLookupLanes(hn::Load(d, table), hn::IndicesFromVec(d, index));
  } else {
    return hn::GatherIndex(d, table, hn::BitCast(I32(), index));
  }
}

/// The search for a code by halving: step k compares with one of 2^k bounds and finds the code's bit 2^(kBits - 1 - k).
/// Where a permutation reaches a table of 2^kBits, tables are indexed by the code so far, else by its bits so far.
/// Without permutations by a vector, few bounds are compared with one by one.
template <int kBits>
class Bounds {
 public:
  explicit Bounds(const float* bounds) {
    if (kCompare) std::copy_n(bounds, kSize - 1, tables_);
    for (int k = 0; k < kBits && !kCompare; ++k) {
      const int half = 1 << (kBits - 1 - k);
      for (int i = 0; i < (1 << k); ++i)
        tables_[first(k) + (kPlain ? 2 * half * i : i)] = bounds[(2 * i + 1) * half - 1];
    }
  }

  HWY_INLINE VU32 operator()(VF32 value) const {
    const U32 du;
    const auto above = hn::Gt(value, hn::Set(F32(), tables_[0]));
    VU32 code = hn::IfThenElseZero(hn::RebindMask(du, above), hn::Set(du, kPlain ? kSize / 2u : 1u));
    if constexpr (kCompare) {
      for (int i = 1; i < kSize - 1; ++i) {
        code = hn::Sub(code, hn::VecFromMask(du, hn::RebindMask(du, hn::Gt(value, hn::Set(F32(), tables_[i])))));
      }
    } else if constexpr (kBits > 1) {  // two bounds take no table
      const float* second = tables_ + first(1);
      step<1>(value, hn::IfThenElse(above, hn::Set(F32(), second[kPlain ? kSize / 2 : 1]), hn::Set(F32(), second[0])),
              &code);
    }
    return code;
  }

 private:
  static constexpr int kSize = 1 << kBits;
  static constexpr bool kCompare = !VQ_AVX2_OR_LATER && kBits <= 4;
  static constexpr bool kPlain = VQ_AVX2_OR_LATER && kSize <= kLanes;

  /// Tables begin on a vector.
  static constexpr int first(int k) {
    int at = 0;
    for (int i = 0; i < k; ++i) at += std::max(kPlain ? kSize : 1 << i, kLanes);
    return at;
  }
  template <int k>
  HWY_INLINE void step(VF32 value, VF32 bound, VU32* code) const {
    const U32 du;
    const auto above = hn::RebindMask(du, hn::Gt(value, bound));
    const VU32 below = kPlain ? *code : hn::Add(*code, *code);
    *code = hn::IfThenElse(above, hn::Add(below, hn::Set(du, kPlain ? 1u << (kBits - 1 - k) : 1u)), below);
    if constexpr (k + 1 < kBits) {
      step<k + 1>(value, look_up < kPlain ? kBits : k + 1 > (tables_ + first(k + 1), *code), code);
    }
  }

  HWY_ALIGN float tables_[first(kBits) + kSize] = {};
};

/// function(std::integral_constant<int, bits>), bits in 1..8.
template <class Function, int kBits = 1>
HWY_INLINE void with_bits(int bits, const Function& function) {
  if (bits == kBits) return function(std::integral_constant<int, kBits>());
  if constexpr (kBits < 8) with_bits<Function, kBits + 1>(bits, function);
}

template <int kBits>
HWY_NOINLINE void encode_codebook_rows(float* u, int64_t ldu, int rows, int dim, const float* factors,
                                       const float* bounds, uint8_t* codes) {
  const F32 d;
  const Bounds<kBits> search(bounds);
  for (int r = 0; r < rows; ++r, u += ldu, codes += dim) {
    const VF32 factor = hn::Set(d, factors[r]);
    const auto code = [&](int i) {
      const VF32 value = hn::Mul(hn::LoadU(d, u + i), factor);
      hn::StoreU(value, d, u + i);
      return search(value);
    };
    int i = 0;
    for (; i + 4 * kLanes <= dim; i += 4 * kLanes) {
      store_four({code(i), code(i + kLanes), code(i + 2 * kLanes), code(i + 3 * kLanes)}, codes + i);
    }
    for (; i + kLanes <= dim; i += kLanes) store_codes(code(i), codes + i);
    if (i == dim) continue;
    const VF32 value = hn::Mul(load_n(d, u + i, dim - i), factor);
    store_n(value, d, u + i, dim - i);
    store_codes_n(search(value), codes + i, dim - i);
  }
}

void encode_codebook(float* u, int64_t ldu, int rows, int dim, const float* factors, const float* bounds, int bits,
                     uint8_t* codes) {
  VQ_CHECK(bits >= 1 && bits <= 8);
  with_bits(bits, [&](auto b) { encode_codebook_rows<b()>(u, ldu, rows, dim, factors, bounds, codes); });
}

template <int kBits>
HWY_NOINLINE void encode_residual_rows(const float* u, int64_t ldu, int rows, int dim, const float* levels,
                                       const float* bounds, uint8_t* codes) {
  const F32 d;
  const U32 du;
  const Bounds<kBits> search(bounds);
  HWY_ALIGN float table[std::max(1 << kBits, kLanes)] = {};
  std::copy_n(levels, 1 << kBits, table);
  const auto refine = [&](VF32 value, VU32 code) {
    const VF32 level = look_up<kBits>(table, code);
    return hn::Or(hn::ShiftLeft<kBits>(code), search(hn::Sub(value, level)));
  };
  for (int r = 0; r < rows; ++r, u += ldu, codes += dim) {
    const auto refined = [&](int i) {
      return refine(hn::LoadU(d, u + i), hn::PromoteTo(du, hn::LoadU(Bytes(), codes + i)));
    };
    int i = 0;
    for (; i + 4 * kLanes <= dim; i += 4 * kLanes) {
      store_four({refined(i), refined(i + kLanes), refined(i + 2 * kLanes), refined(i + 3 * kLanes)}, codes + i);
    }
    for (; i + kLanes <= dim; i += kLanes) store_codes(refined(i), codes + i);
    if (i == dim) continue;
    const VU32 code = hn::PromoteTo(du, load_n(Bytes(), codes + i, dim - i));
    store_codes_n(refine(load_n(d, u + i, dim - i), code), codes + i, dim - i);
  }
}

void encode_residual(const float* u, int64_t ldu, int rows, int dim, const float* levels, const float* bounds, int bits,
                     uint8_t* codes) {
  VQ_CHECK(bits >= 1 && bits <= 4);
  with_bits(bits, [&](auto b) {
    if constexpr (b() <= 4) encode_residual_rows<b()>(u, ldu, rows, dim, levels, bounds, codes);
  });
}

}  // namespace veloxquant::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace veloxquant::kernels {

HWY_EXPORT(encode_affine_rows);
HWY_EXPORT(encode_affine_channels);
HWY_EXPORT(encode_int8);
HWY_EXPORT(inner_products);
HWY_EXPORT(encode_codebook);
HWY_EXPORT(encode_residual);

void encode_affine_rows(const float* x, int64_t ldx, int rows, int dim, int group, int bits, uint8_t* codes,
                        uint16_t* params) {
  HWY_DYNAMIC_DISPATCH(encode_affine_rows)(x, ldx, rows, dim, group, bits, codes, params);
}
void encode_affine_channels(const float* x, int64_t ldx, int rows, int dim, int bits, uint8_t* codes, int64_t ldc,
                            uint16_t* params) {
  HWY_DYNAMIC_DISPATCH(encode_affine_channels)(x, ldx, rows, dim, bits, codes, ldc, params);
}
void encode_int8(const float* x, int64_t ldx, int rows, int dim, uint8_t* codes, uint16_t* scales) {
  HWY_DYNAMIC_DISPATCH(encode_int8)(x, ldx, rows, dim, codes, scales);
}
void inner_products(const float* a, int64_t lda, const float* b, int64_t ldb, int rows, int dim, float* products) {
  HWY_DYNAMIC_DISPATCH(inner_products)(a, lda, b, ldb, rows, dim, products);
}
void encode_codebook(float* u, int64_t ldu, int rows, int dim, const float* factors, const float* bounds, int bits,
                     uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(encode_codebook)(u, ldu, rows, dim, factors, bounds, bits, codes);
}
void encode_residual(const float* u, int64_t ldu, int rows, int dim, const float* levels, const float* bounds, int bits,
                     uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(encode_residual)(u, ldu, rows, dim, levels, bounds, bits, codes);
}

}  // namespace veloxquant::kernels
#endif  // HWY_ONCE
