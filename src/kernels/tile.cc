// Operands, planes and packing of sealed tiles.
#include "kernels/tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/targets.h"
#include "kernels/tile_plain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile.cc"
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
// After foreach_target.h.
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace veloxquant::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

using U8 = hn::ScalableTag<uint8_t>;
using VU8 = hn::Vec<U8>;
inline constexpr int kBytes = static_cast<int>(HWY_LANES(uint8_t));

// The dot product of AVX-512 VNNI takes unsigned bytes, the others signed ones.
#if HWY_TARGET == HWY_AVX3_DL
inline constexpr int kTableShift = 128;
#else
inline constexpr int kTableShift = 0;
#endif

// --- operands ------------------------------------------------------------------------------------

HWY_INLINE VU8 swap_halves(VU8 v) {
#if HWY_MAX_BYTES == 64
  const U8 d;
  return hn::ConcatLowerUpper(d, v, v);
#else
  return v;
#endif
}

/// Vector `i` of a row whose units are turned, and where it belongs in natural order. Halves of 32 free indices are
/// turned apart.
template <int kTurn>
HWY_INLINE VU8 load_turned(const uint8_t* row, int i) {
  const VU8 v = hn::LoadU(U8(), row + i * kBytes);
  if constexpr (kBytes == 64 && (kTurn & 2) != 0) return swap_halves(v);
  return v;
}
template <int kTurn>
constexpr int natural_offset(int i) {
  constexpr int kPerHalf = 128 / kBytes, kUnits = kBytes / 16;
  return i / kPerHalf * 128 + (i % kPerHalf ^ kTurn / kUnits) * kBytes;
}
/// Swizzle of word row `word` of strips of kWidth.
template <int kWidth>
constexpr int turn_of(int word) {
  return kWidth == 16 ? 2 * ((word >> 1) & 1) : 2 * (word & 3);
}

template <int kShift>
HWY_INLINE VU8 shift_right(VU8 v) {
  const hn::Repartition<uint16_t, U8> d16;
  return hn::BitCast(U8(), hn::ShiftRight<kShift>(hn::BitCast(d16, v)));
}

/// Field kField of every byte of v, as operand bytes. The table is looked up with the code; with a vector byte
/// permutation of 64 entries the bits above the code need not be cleared.
template <int kBits>
class Fields {
 public:
  explicit Fields(const TileLevels& levels) : kind_(levels.kind) {
    const U8 d;
    const VU8 table = hn::LoadDup128(d, reinterpret_cast<const uint8_t*>(levels.levels));
    table_ = hn::Add(table, hn::Set(d, uint8_t{kTableShift}));
  }

  template <int kField>
  HWY_INLINE VU8 get(VU8 v) const {
    const U8 d;
    if constexpr (kBits == 8) {
      const bool flip = kind_ == TileLevels::Kind::integer ? kTableShift != 0 : kTableShift == 0;
      return flip ? hn::Xor(v, hn::Set(d, uint8_t{0x80})) : v;
    } else {
      VU8 code = v;
      if constexpr (kField > 0) code = shift_right<kBits * kField>(v);
      if (kind_ == TileLevels::Kind::raw) return hn::And(code, hn::Set(d, uint8_t{(1 << kBits) - 1}));
      return look_up(code);
    }
  }

  /// Levels of codes that may have anything above their bits.
  HWY_INLINE VU8 look_up(VU8 code) const {
#if HWY_TARGET == HWY_AVX3_DL
    return VU8{_mm512_permutexvar_epi8(code.raw, table_.raw)};
#else
    return hn::TableLookupBytes(table_, hn::And(code, hn::Set(U8(), uint8_t{(1 << kBits) - 1})));
#endif
  }
  bool raw() const { return kind_ == TileLevels::Kind::raw; }

 private:
  TileLevels::Kind kind_;
  VU8 table_;
};

template <int kBits, int kField = 0>
HWY_INLINE void store_fields(VU8 v, const Fields<kBits>& fields, int row_bytes, uint8_t* out) {
  hn::StoreU(fields.template get<kField>(v), U8(), out);
  if constexpr ((kField + 1) * kBits < 8) store_fields<kBits, kField + 1>(v, fields, row_bytes, out + row_bytes);
}

/// Fetches the bytes that lie `ahead` of a row; 0: none.
template <int kRowBytes>
HWY_INLINE void fetch(const uint8_t* row, intptr_t ahead) {
  if (ahead == 0) return;
  for (int i = 0; i < kRowBytes; i += 64) {
    hwy::Prefetch(reinterpret_cast<const uint8_t*>(reinterpret_cast<intptr_t>(row) + ahead) + i);
  }
}

/// The row of a word whose number is kWord modulo 4.
template <int kBits, int kWidth, int kWord>
HWY_INLINE void operand_row(const uint8_t* row, intptr_t ahead, const Fields<kBits>& fields, uint8_t* out) {
  constexpr int kRowBytes = 4 * kWidth, kTurn = turn_of<kWidth>(kWord);
  fetch<kRowBytes>(row, ahead);
  for (int i = 0; i * kBytes < kRowBytes; ++i) {
    store_fields<kBits>(load_turned<kTurn>(row, i), fields, kRowBytes, out + natural_offset<kTurn>(i));
  }
}

/// Words of 1, 2, 4 or 8 bits.
template <int kBits, int kWidth>
void operand_words(int words, const TileLevels& levels, const uint8_t* codes, intptr_t ahead, uint8_t* out) {
  constexpr int kRowBytes = 4 * kWidth, kOutBytes = kRowBytes * (8 / kBits);
  const Fields<kBits> fields(levels);
  for (; words >= 4; words -= 4, codes += 4 * kRowBytes, out += 4 * kOutBytes) {
    operand_row<kBits, kWidth, 0>(codes, ahead, fields, out);
    operand_row<kBits, kWidth, 1>(codes + kRowBytes, ahead, fields, out + kOutBytes);
    operand_row<kBits, kWidth, 2>(codes + 2 * kRowBytes, ahead, fields, out + 2 * kOutBytes);
    operand_row<kBits, kWidth, 3>(codes + 3 * kRowBytes, ahead, fields, out + 3 * kOutBytes);
  }
  if (words > 0) operand_row<kBits, kWidth, 0>(codes, ahead, fields, out);
  if (words > 1) operand_row<kBits, kWidth, 1>(codes + kRowBytes, ahead, fields, out + kOutBytes);
  if (words > 2) operand_row<kBits, kWidth, 2>(codes + 2 * kRowBytes, ahead, fields, out + 2 * kOutBytes);
}

/// Levels of field kField of words of 3 bits: two bits from `wide`, the third from `narrow`, which the caller has
/// shifted so that its bits are those of an even word.
template <int kField>
HWY_INLINE VU8 three_bit_level(VU8 wide, VU8 narrow, const Fields<3>& fields) {
  const U8 d;
  VU8 low = wide;
  if constexpr (kField > 0) low = shift_right<2 * kField>(wide);
  constexpr int kBit = narrow_bit(0, kField);
  VU8 high;
  if constexpr (kBit >= 2) {
    high = shift_right<kBit - 2>(narrow);
  } else {
    const hn::Repartition<uint16_t, U8> d16;
    high = hn::BitCast(d, hn::ShiftLeft<2 - kBit>(hn::BitCast(d16, narrow)));
  }
  const VU8 code = hn::Or(hn::And(low, hn::Set(d, uint8_t{3})), hn::And(high, hn::Set(d, uint8_t{4})));
  return fields.raw() ? code : fields.look_up(code);
}

/// One of the two words of a group, kWord modulo 4; the narrow row is in natural order.
template <int kWidth, int kWord>
HWY_INLINE void three_bit_row(const uint8_t* row, const uint8_t* narrow_row, const Fields<3>& fields, uint8_t* out) {
  const U8 d;
  constexpr int kRowBytes = 4 * kWidth, kTurn = turn_of<kWidth>(kWord);
  for (int i = 0; i * kBytes < kRowBytes; ++i) {
    const int at = natural_offset<kTurn>(i);
    const VU8 wide = load_turned<kTurn>(row, i);
    VU8 narrow = hn::Load(d, narrow_row + at);
    if constexpr (kWord % 2 == 1) narrow = shift_right<2>(narrow);
    hn::StoreU(three_bit_level<0>(wide, narrow, fields), d, out + at);
    hn::StoreU(three_bit_level<1>(wide, narrow, fields), d, out + at + kRowBytes);
    hn::StoreU(three_bit_level<2>(wide, narrow, fields), d, out + at + 2 * kRowBytes);
    hn::StoreU(three_bit_level<3>(wide, narrow, fields), d, out + at + 3 * kRowBytes);
  }
}

/// Group kGroup modulo 2: a narrow row and two wide ones.
template <int kWidth, int kGroup>
HWY_INLINE void three_bit_group(const uint8_t* codes, const Fields<3>& fields, uint8_t* out) {
  constexpr int kRowBytes = 4 * kWidth, kTurn = narrow_row_turn(kGroup);
  HWY_ALIGN uint8_t narrow_row[kRowBytes < 64 ? 64 : kRowBytes];
  for (int i = 0; i * kBytes < kRowBytes; ++i) {
    hn::Store(load_turned<kTurn>(codes, i), U8(), narrow_row + natural_offset<kTurn>(i));
  }
  three_bit_row<kWidth, 2 * kGroup>(codes + kRowBytes, narrow_row, fields, out);
  three_bit_row<kWidth, 2 * kGroup + 1>(codes + 2 * kRowBytes, narrow_row, fields, out + 4 * kRowBytes);
}

template <int kWidth>
void operand_three_bits(int words, const TileLevels& levels, const uint8_t* codes, intptr_t ahead, uint8_t* out) {
  constexpr int kGroupBytes = 12 * kWidth, kOutBytes = 32 * kWidth;
  const Fields<3> fields(levels);
  for (; words > 0; words -= 4, codes += 2 * kGroupBytes, out += 2 * kOutBytes) {
    fetch<2 * kGroupBytes>(codes, ahead);
    three_bit_group<kWidth, 0>(codes, fields, out);
    if (words > 2) three_bit_group<kWidth, 1>(codes + kGroupBytes, fields, out + kOutBytes);
  }
}

template <int kWidth>
void operand_strip(const TileGrid& grid, const TileLevels& levels, const uint8_t* codes, intptr_t ahead, uint8_t* out) {
  const int words = grid.words();
  switch (grid.bits) {
    case 1:
      return operand_words<1, kWidth>(words, levels, codes, ahead, out);
    case 2:
      return operand_words<2, kWidth>(words, levels, codes, ahead, out);
    case 3:
      return operand_three_bits<kWidth>(words, levels, codes, ahead, out);
    case 4:
      return operand_words<4, kWidth>(words, levels, codes, ahead, out);
    default:
      return operand_words<8, kWidth>(words, levels, codes, ahead, out);
  }
}

void operand(const TileGrid& grid, const TileStrip& strip, const TileLevels& levels, const std::byte* codes,
             const std::byte* ahead, uint8_t* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
  const intptr_t distance = ahead ? reinterpret_cast<intptr_t>(ahead) - reinterpret_cast<intptr_t>(codes) : 0;
  if (strip.width == 64) return operand_strip<64>(grid, levels, bytes, distance, out);
  if (strip.width == 32) return operand_strip<32>(grid, levels, bytes, distance, out);
  operand_strip<16>(grid, levels, bytes, distance, out);
}

// --- planes --------------------------------------------------------------------------------------

constexpr float kLeastMagnitude = 1e-30f;
constexpr int kLowBits = 7;

/// Both planes of integers of up to 15 bits: v = 128 * high + low, low in [-64, 63].
struct Planes {
  hn::Vec<I32> high, low;
};
HWY_INLINE Planes split(hn::Vec<I32> v) {
  const I32 d;
  const auto high = hn::ShiftRight<kLowBits>(hn::Add(v, hn::Set(d, 1 << (kLowBits - 1))));
  return {high, hn::Sub(v, hn::ShiftLeft<kLowBits>(high))};
}

HWY_INLINE float largest_magnitude(const float* x, int k) {
  const F32 d;
  VF32 largest = hn::Zero(d);
  for (int i = 0; i < k; i += kLanes) largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + i)));
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

#if HWY_TARGET == HWY_AVX3_DL

/// Byte p of the result is that of element order[p]: the two narrowing steps leave element e at the position given by
/// its bits, which one byte permutation undoes together with the order.
HWY_INLINE __m512i narrow_position(const OperandOrder& order) {
  const __m512i e = _mm512_loadu_si512(order.data());
  const __m512i block = _mm512_and_si512(_mm512_slli_epi16(e, 2), _mm512_set1_epi8(0x30));
  const __m512i dword = _mm512_and_si512(_mm512_srli_epi16(e, 2), _mm512_set1_epi8(0x0c));
  return _mm512_or_si512(_mm512_or_si512(block, dword), _mm512_and_si512(e, _mm512_set1_epi8(3)));
}
HWY_INLINE __m512i narrow(const __m512i (&v)[4], __m512i position) {
  const __m512i words = _mm512_packs_epi32(v[0], v[1]), more = _mm512_packs_epi32(v[2], v[3]);
  return _mm512_permutexvar_epi8(position, _mm512_packs_epi16(words, more));
}

/// Integers of 64 numbers as planes in operand order, and their sum by lanes.
struct Narrowed {
  __m512i high, low, sum;
};
template <int kPlanes>
HWY_INLINE Narrowed quantise_64(const __m512* v, __m512 factor, __m512i position) {
  __m512i high[4], low[4], sum = _mm512_setzero_si512();
  for (int j = 0; j < 4; ++j) {
    const __m512i integer = _mm512_cvtps_epi32(_mm512_mul_ps(v[j], factor));
    sum = _mm512_add_epi32(sum, integer);
    const Planes planes = split(hn::Vec<I32>{integer});
    high[j] = kPlanes == 2 ? planes.high.raw : integer;
    low[j] = planes.low.raw;
  }
  return {narrow(high, position), narrow(low, position), sum};
}

template <int kPlanes>
HWY_INLINE int32_t quantise_planes(const float* x, int k, float inverse, const OperandOrder& order, int8_t* out) {
  const __m512i position = narrow_position(order);
  const __m512 factor = _mm512_set1_ps(inverse);
  __m512i sum = _mm512_setzero_si512();
  for (int i = 0; i < k; i += 64) {
    const int left = std::min(64, k - i);
    __m512 v[4];
    for (int j = 0; j < 4; ++j) v[j] = 16 * j < left ? _mm512_loadu_ps(x + i + 16 * j) : _mm512_setzero_ps();
    const Narrowed group = quantise_64<kPlanes>(v, factor, position);
    sum = _mm512_add_epi32(sum, group.sum);
    const __mmask64 kept = left == 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    _mm512_mask_storeu_epi8(out + i, kept, group.high);
    if constexpr (kPlanes == 2) _mm512_mask_storeu_epi8(out + k + i, kept, group.low);
  }
  return _mm512_reduce_add_epi32(sum);
}

#else

template <int kPlanes>
HWY_INLINE int32_t quantise_planes(const float* x, int k, float inverse, const OperandOrder& order, int8_t* out) {
  const F32 d;
  const I32 di;
  const hn::Rebind<int8_t, F32> d8;
  const VF32 factor = hn::Set(d, inverse);
  auto sum = hn::Zero(di);
  for (int i = 0; i < k; i += 64) {
    const int left = std::min(64, k - i);
    HWY_ALIGN int8_t high[64], low[64];
    for (int j = 0; j < left; j += kLanes) {
      const auto integer = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i + j), factor));
      sum = hn::Add(sum, integer);
      if constexpr (kPlanes == 2) {
        const Planes planes = split(integer);
        hn::StoreU(hn::DemoteTo(d8, planes.high), d8, high + j);
        hn::StoreU(hn::DemoteTo(d8, planes.low), d8, low + j);
      } else {
        hn::StoreU(hn::DemoteTo(d8, integer), d8, high + j);
      }
    }
    for (int p = 0; p < left; ++p) {
      const size_t e = order[static_cast<size_t>(p)];
      out[i + p] = high[e];
      if constexpr (kPlanes == 2) out[k + i + p] = low[e];
    }
  }
  return hn::GetLane(hn::SumOfLanes(di, sum));
}

#endif

float quantise(const float* x, int k, int planes, const OperandOrder& order, int8_t* out, int32_t* sum) {
  const float largest = largest_magnitude(x, k);
  if (!(largest >= kLeastMagnitude)) {
    std::memset(out, 0, static_cast<size_t>(planes * k));
    *sum = 0;
    return 0;
  }
  // 127 * 128: the high plane ends at 127.
  const float limit = planes == 2 ? 16256.0f : 127.0f;
  const float inverse = limit / largest;
  *sum = planes == 2 ? quantise_planes<2>(x, k, inverse, order, out) : quantise_planes<1>(x, k, inverse, order, out);
  return largest / limit;
}

// --- parameters ----------------------------------------------------------------------------------

float peak(const float* x, int k) {
  const F32 d;
  VF32 energy = hn::Zero(d);
  for (int i = 0; i < k; i += kLanes) {
    const VF32 v = hn::LoadU(d, x + i);
    energy = hn::MulAdd(v, v, energy);
  }
  const float sum = hn::GetLane(hn::SumOfLanes(d, energy)), largest = largest_magnitude(x, k);
  return sum > 0 ? largest * largest * static_cast<float>(k) / sum : 0;
}

float apply(const float* x, const float* scale, const float* zero, int k, float* out) {
  const F32 d;
  if (!zero) {
    for (int i = 0; i < k; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::LoadU(d, scale + i)), d, out + i);
    return 0;
  }
  VF32 bias = hn::Zero(d);
  for (int i = 0; i < k; i += kLanes) {
    const VF32 value = hn::LoadU(d, x + i);
    hn::StoreU(hn::Mul(value, hn::LoadU(d, scale + i)), d, out + i);
    bias = hn::MulAdd(value, hn::LoadU(d, zero + i), bias);
  }
  return hn::GetLane(hn::SumOfLanes(d, bias));
}

#if HWY_TARGET == HWY_AVX3_DL
/// fold in registers, for k = 64 * kGroups.
template <int kGroups, int kPlanes, bool kZero>
void fold_groups(const FoldRows& rows, const float* scale, const float* zero, const OperandOrder& order,
                 int32_t shift) {
  constexpr int kVectors = 4 * kGroups;
  constexpr float kLimit = kPlanes == 2 ? 16256.0f : 127.0f;
  const __m512i position = narrow_position(order);
  for (int i = 0; i < rows.n; ++i) {
    const float* x = rows.x + i * rows.ldx;
    __m512 v[kVectors], largest = _mm512_setzero_ps(), bias = _mm512_setzero_ps();
    for (int j = 0; j < kVectors; ++j) {
      const __m512 value = _mm512_loadu_ps(x + 16 * j);
      v[j] = _mm512_mul_ps(value, _mm512_loadu_ps(scale + 16 * j));
      largest = _mm512_max_ps(largest, _mm512_abs_ps(v[j]));
      if constexpr (kZero) bias = _mm512_fmadd_ps(value, _mm512_loadu_ps(zero + 16 * j), bias);
    }
    const float most = _mm512_reduce_max_ps(largest);
    DotTerm& term = rows.terms[i * rows.ldt];
    int8_t* out = rows.out + i * rows.ldo;
    term = {0, kZero ? _mm512_reduce_add_ps(bias) : 0, 0};
    if (!(most >= kLeastMagnitude)) {
      std::memset(out, 0, static_cast<size_t>(64 * kGroups * kPlanes));
      continue;
    }
    const __m512 inverse = _mm512_set1_ps(kLimit / most);
    __m512i sum = _mm512_setzero_si512();
    for (int g = 0; g < kGroups; ++g) {
      const Narrowed group = quantise_64<kPlanes>(v + 4 * g, inverse, position);
      sum = _mm512_add_epi32(sum, group.sum);
      _mm512_storeu_si512(out + 64 * g, group.high);
      if constexpr (kPlanes == 2) _mm512_storeu_si512(out + 64 * (kGroups + g), group.low);
    }
    term.unit = most / kLimit;
    term.start = -shift * _mm512_reduce_add_epi32(sum);
  }
}

template <int kGroups>
void fold_planes(const FoldRows& rows, const float* scale, const float* zero, int planes, const OperandOrder& order,
                 int32_t shift) {
  if (zero) {
    if (planes == 2) return fold_groups<kGroups, 2, true>(rows, scale, zero, order, shift);
    return fold_groups<kGroups, 1, true>(rows, scale, zero, order, shift);
  }
  if (planes == 2) return fold_groups<kGroups, 2, false>(rows, scale, zero, order, shift);
  fold_groups<kGroups, 1, false>(rows, scale, zero, order, shift);
}
#endif

void fold(const FoldRows& rows, const float* scale, const float* zero, int k, int planes, const OperandOrder& order,
          int32_t shift) {
#if HWY_TARGET == HWY_AVX3_DL
  if (k == 64) return fold_planes<1>(rows, scale, zero, planes, order, shift);
  if (k == 128) return fold_planes<2>(rows, scale, zero, planes, order, shift);
  if (k == 256) return fold_planes<4>(rows, scale, zero, planes, order, shift);
#endif
  fold_rows(rows, scale, zero, k, planes, order, shift, apply, quantise);
}

/// Byte m of every lane in fp32.
HWY_INLINE VF32 byte_value(VU32 bytes, int m) {
  const F32 d;
  const I32 di;
  // To the top, then down: with the sign where bytes are signed.
  const VU32 top = hn::ShiftLeftSame(bytes, 24 - 8 * m);
  if constexpr (kTableShift == 0) return hn::ConvertTo(d, hn::ShiftRight<24>(hn::BitCast(di, top)));
  return hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<24>(top)));
}

void expand(const uint8_t* operand, int width, int steps, const OperandOrder& order, const OperandOrder& parameter,
            const float* scale, const float* zero, int64_t class_stride, float* out, int64_t ld) {
  const F32 d;
  const U32 du;
  for (int s = 0; s < steps; ++s, operand += 4 * width) {
    const int first = s / 16 * 64;
    for (int x = 0; x < width; x += kLanes) {
      const VU32 bytes = hn::LoadU(du, reinterpret_cast<const uint32_t*>(operand + 4 * x));
      const int64_t of_class = x / 32 * class_stride + first;
      for (int m = 0; m < 4; ++m) {
        const auto p = static_cast<size_t>(4 * (s % 16) + m);
        const int64_t at = of_class + parameter[p];
        const VF32 value = hn::MulAdd(hn::Set(d, scale[at]), byte_value(bytes, m), hn::Set(d, zero[at]));
        hn::StoreU(value, d, out + (first + order[p]) * ld + x);
      }
    }
  }
}

void affine_parameters(const uint16_t* scales, const uint16_t* zeros, int n, float middle, float* scale, float* zero) {
  const F32 d;
  const U16 d16;
  const VF32 from_middle = hn::Set(d, middle);
  for (int i = 0; i < n; i += kLanes) {
    const VF32 s = f32_from_f16(hn::LoadU(d16, scales + i));
    hn::StoreU(s, d, scale + i);
    hn::StoreU(hn::MulAdd(s, from_middle, f32_from_f16(hn::LoadU(d16, zeros + i))), d, zero + i);
  }
}

void permute(const float* x, const OperandOrder& order, float* out) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  const __m512 v[4] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16), _mm512_loadu_ps(x + 32), _mm512_loadu_ps(x + 48)};
  for (int i = 0; i < 64; i += 16) {
    const __m512i from = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(order.data() + i)));
    const __m512 low = _mm512_permutex2var_ps(v[0], from, v[1]), high = _mm512_permutex2var_ps(v[2], from, v[3]);
    const __mmask16 upper = _mm512_test_epi32_mask(from, _mm512_set1_epi32(32));
    _mm512_storeu_ps(out + i, _mm512_mask_blend_ps(upper, low, high));
  }
#else
  for (size_t p = 0; p < order.size(); ++p) out[p] = x[order[p]];
#endif
}

// --- packing -------------------------------------------------------------------------------------

/// Contraction index of byte m, field f of a word.
HWY_INLINE int element_of(const TileGrid& grid, const OperandOrder& order, int word, int m, int f) {
  const int fields = 8 / grid.word_bits(), words_of_64 = 2 * grid.word_bits();
  const int position = (word % words_of_64 * fields + f) * 4 + m;
  return word / words_of_64 * 64 + order[static_cast<size_t>(position)];
}

/// One row of words where the free index is contiguous in the codes: `shift` is that of the plane inside a code, bit(m,
/// f) where a field stands in the word, and field codes of contraction index k are at codes + k * ld.
template <class Bit>
HWY_INLINE void pack_row(const TileGrid& grid, const TileStrip& strip, const OperandOrder& order, const uint8_t* codes,
                         int64_t ld, int first_word, int words, int shift, unsigned mask, Bit bit, int turn,
                         std::byte* row) {
  const U32 d;
  const hn::Rebind<uint8_t, U32> d8;
  const int fields = 8 / grid.word_bits();
  for (int x = 0; x < strip.width; x += kLanes) {
    VU32 word = hn::Zero(d);
    for (int w = first_word; w < first_word + words; ++w) {
      for (int f = 0; f < fields; ++f) {
        for (int m = 0; m < 4; ++m) {
          const int k = element_of(grid, order, w, m, f);
          VU32 code = hn::PromoteTo(d, hn::LoadU(d8, codes + k * ld + strip.first + x));
          code = hn::And(hn::ShiftRightSame(code, shift), hn::Set(d, mask));
          word = hn::Or(word, hn::ShiftLeftSame(code, 8 * m + bit(w, f)));
        }
      }
    }
    HWY_ALIGN uint32_t lanes[kLanes];
    hn::Store(word, d, lanes);
    for (int i = 0; i < kLanes; i += 4) {
      std::memcpy(row + entry_offset(strip, x + i, turn), lanes + i, std::min(16, 4 * kLanes));
    }
  }
}

/// The same where the contraction index is contiguous: codes of free index x are at codes + x * ld.
template <class Bit>
HWY_INLINE void pack_across(const TileGrid& grid, const TileStrip& strip, const OperandOrder& order,
                            const uint8_t* codes, int64_t ld, int first_word, int words, int shift, unsigned mask,
                            Bit bit, int turn, std::byte* row) {
  const int fields = 8 / grid.word_bits();
  for (int x = 0; x < strip.width; ++x) {
    const uint8_t* own = codes + (strip.first + x) * ld;
    uint32_t word = 0;
    for (int w = first_word; w < first_word + words; ++w) {
      for (int f = 0; f < fields; ++f) {
        for (int m = 0; m < 4; ++m) {
          const unsigned code = static_cast<unsigned>(own[element_of(grid, order, w, m, f)]) >> shift & mask;
          word |= code << (8 * m + bit(w, f));
        }
      }
    }
    std::memcpy(row + entry_offset(strip, x, turn), &word, sizeof word);
  }
}

void pack(const TileGrid& grid, const uint8_t* codes, int64_t ld, bool channel_major, std::byte* out) {
  const OperandOrder order = operand_order(grid);
  const bool along = (grid.side == Side::key) == channel_major;
  const auto put = [&](const TileStrip& strip, int word, int words, int shift, unsigned mask, auto bit, int turn,
                       size_t offset) {
    std::byte* row = out + strip.offset + offset;
    if (along) {
      pack_row(grid, strip, order, codes, ld, word, words, shift, mask, bit, turn, row);
    } else {
      pack_across(grid, strip, order, codes, ld, word, words, shift, mask, bit, turn, row);
    }
  };
  const int b = grid.word_bits();
  const auto wide_bit = [b](int, int f) { return b * f; };
  for_each_strip(grid, [&](const TileStrip& strip) {
    for (int word = 0; word < grid.words(); ++word) {
      put(strip, word, 1, 0, (1u << b) - 1, wide_bit, row_turn(strip, word), row_offset(grid, strip, word));
    }
    for (int group = 0; grid.bits == 3 && 2 * group < grid.words(); ++group) {
      put(strip, 2 * group, 2, 2, 1u, narrow_bit, narrow_row_turn(group), narrow_row_offset(strip, group));
    }
  });
}

#endif  // HWY_TARGET != HWY_SCALAR

// --- the table -----------------------------------------------------------------------------------

const TileKernels& table() {
#if HWY_TARGET == HWY_SCALAR
#if HWY_ARCH_X86
  static constexpr auto kDot = tile_dot_sse2;
#else
  static constexpr auto kDot = plain::dot;
#endif
  static constexpr TileKernels kTable = {
      plain::operand,           kDot,           plain::quantise, plain::peak, plain::apply, plain::fold, plain::expand,
      plain::affine_parameters, plain::permute, plain::pack,     0,           "baseline"};
#else
#if HWY_TARGET == HWY_AVX3_DL
  static constexpr auto kDot = tile_dot_vnni;
  static constexpr auto kName = "vnni";
#elif HWY_TARGET == HWY_NEON
  static constexpr auto kDot = tile_dot_neon;
  static constexpr auto kName = "neon";
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  static constexpr auto kDot = tile_dot_avx2;
  static constexpr auto kName = "avx2";
#elif HWY_ARCH_X86
  static constexpr auto kDot = tile_dot_sse2;
  static constexpr auto kName = "sse2";
#else
  static constexpr auto kDot = plain::dot;
  static constexpr auto kName = "plain";
#endif
  static constexpr TileKernels kTable = {operand,           kDot,    quantise, peak,        apply, fold, expand,
                                         affine_parameters, permute, pack,     kTableShift, kName};
#endif
  return kTable;
}

}  // namespace veloxquant::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace veloxquant::kernels {

HWY_EXPORT(table);

const TileKernels& tile_kernels() { return HWY_DYNAMIC_DISPATCH(table)(); }

int operand_shift(const TileKernels& kernels, const TileLevels& levels, int bits) {
  // Raw codes are their own bytes; those of 8 bits have the sign that the dot product wants.
  return levels.kind == TileLevels::Kind::raw && bits < 8 ? 1 << (bits - 1) : kernels.table_shift;
}

}  // namespace veloxquant::kernels
#endif  // HWY_ONCE
