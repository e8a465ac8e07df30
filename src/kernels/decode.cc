// From packed codes to fp32. A vector of codes is unpacked from the few bytes that hold it, then turned into values
// with one rounding or two: affine zero + scale * code, codebook level * (norm * norm_scale).
//
// The product scale * code is exact (at most 11 and 8 bits), so that the multiply-add, fused where the instruction set
// has one, gives equal bits everywhere as long as the product does not overflow. The other two functions are single
// multiplications: equal bits everywhere, without condition.
//
// No byte outside the runs is read: from the first byte of the first run to the last byte of the last one.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "core/check.h"
#include "core/half.h"
#include "core/layout.h"
#include "kernels/kernels.h"
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decode.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace veloxquant::kernels::HWY_NAMESPACE {

// --- unpacking -----------------------------------------------------------------------------------

/// Code i of a bit string.
template <int kBits>
HWY_INLINE uint32_t code_at(const std::byte* string, size_t i) {
  const size_t bit = i * kBits, byte = bit / 8, shift = bit % 8;
  uint32_t word = static_cast<uint32_t>(string[byte]);
  if (shift + kBits > 8) word |= static_cast<uint32_t>(string[byte + 1]) << 8;
  return (word >> shift) & ((1u << kBits) - 1);
}

#if VQ_AVX2_OR_LATER
/// kLanes codes of a bit string: its bytes are brought to every 128-bit block, each lane takes the two that hold its
/// code and shifts them.
template <int kBits>
class Unpacker {
 public:
  /// `end` bounds what may be read.
  explicit Unpacker(const std::byte* end) : end_(end) {
    HWY_ALIGN uint32_t shifts[kLanes], bytes[kLanes];
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t bit = lane * kBits;
      shifts[lane] = kWord ? bit : bit % 8;
      bytes[lane] = 0x80800000u | (bit / 8 + 1) << 8 | bit / 8;  // 0x80 gives a zero byte
    }
    shifts_ = hn::Load(U32(), shifts);
    bytes_ = hn::Load(U32(), bytes);
  }

  /// The codes of vector v: v * kLanes and the kLanes - 1 after it.
  HWY_INLINE VU32 operator()(const std::byte* string, size_t v) const {
    const U32 du;
    const std::byte* from = string + v * kBytes;
    if constexpr (kBits == 8) {
      const hn::Rebind<uint8_t, U32> bytes;
      return hn::PromoteTo(du, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(from)));
    } else {
      return hn::And(load(from) >> shifts_, hn::Set(du, (1u << kBits) - 1));
    }
  }

 private:
  static constexpr int kBytes = kLanes * kBits / 8;
  static constexpr bool kWord = std::has_single_bit(static_cast<unsigned>(kBits)) && kBytes <= 4;

  /// The bytes of a lane's code in the lane's lowest bytes; all of them when they fit a word.
  HWY_INLINE VU32 load(const std::byte* from) const {
    const U32 du;
    if constexpr (kWord) {
      uint32_t word = 0;
      std::memcpy(&word, from, kBytes);
      return hn::Set(du, word);
    } else if constexpr (kBytes == 8) {
      uint64_t word = 0;
      std::memcpy(&word, from, kBytes);
      return gather(hn::BitCast(du, hn::Set(hn::Repartition<uint64_t, U32>(), word)));
    } else if (HWY_LIKELY(end_ - from >= 16)) {
      return gather(load_16(from));
    } else {
      std::byte padded[16] = {};
      std::memcpy(padded, from, kBytes);
      return gather(load_16(padded));
    }
  }
  static HWY_INLINE VU32 load_16(const std::byte* from) {
    const hn::Repartition<uint8_t, U32> bytes;
    return hn::BitCast(U32(), hn::LoadDup128(bytes, reinterpret_cast<const uint8_t*>(from)));
  }
  HWY_INLINE VU32 gather(VU32 blocks) const {
    const hn::Repartition<uint8_t, U32> bytes;
    return hn::BitCast(U32(), hn::TableLookupBytesOr0(hn::BitCast(bytes, blocks), hn::BitCast(bytes, bytes_)));
  }

  const std::byte* end_;
  VU32 shifts_, bytes_;
};
#else
/// kLanes codes of a bit string, one by one: without a shift count per lane vectors do not pay.
template <int kBits>
class Unpacker {
 public:
  explicit Unpacker(const std::byte*) {}
  HWY_INLINE VU32 operator()(const std::byte* string, size_t v) const {
    HWY_ALIGN uint32_t codes[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) codes[lane] = code_at<kBits>(string, v * kLanes + lane);
    return hn::Load(U32(), codes);
  }
};
#endif

/// The first n < kLanes codes from any i, other lanes zero. Out of line: few sizes need it.
template <int kBits>
HWY_NOINLINE void unpack_n(const std::byte* string, int i, int n, uint32_t* codes) {
  for (int lane = 0; lane < n; ++lane) codes[lane] = code_at<kBits>(string, static_cast<size_t>(i + lane));
  std::fill(codes + n, codes + kLanes, 0u);
}
template <int kBits>
HWY_INLINE VU32 unpack_n(const std::byte* string, int i, int n) {
  HWY_ALIGN uint32_t codes[kLanes];
  unpack_n<kBits>(string, i, n, codes);
  return hn::Load(U32(), codes);
}

HWY_INLINE VF32 to_float(VU32 codes) { return hn::ConvertTo(F32(), hn::BitCast(I32(), codes)); }

// --- decode_affine -------------------------------------------------------------------------------

/// Codes of a run, put together from its planes: the widest comes first and is the least significant.
template <int kBits>
class PlaneUnpacker {
 public:
  explicit PlaneUnpacker(int run_codes)
      : plane_(nullptr), rest_(run_codes), rest_offset_(packed_bytes(Packing::bit_string, run_codes, kWidth)) {}

  /// The codes of vector v.
  HWY_INLINE VU32 operator()(const std::byte* run, size_t v) const {
    VU32 codes = plane_(run, v);
    if constexpr (kRest > 0) codes = hn::Or(codes, hn::ShiftLeft<kWidth>(rest_(run + rest_offset_, v)));
    return codes;
  }
  /// The first n < kLanes codes from any i.
  HWY_INLINE VU32 operator()(const std::byte* run, int i, int n) const {
    VU32 codes = unpack_n<kWidth>(run, i, n);
    if constexpr (kRest > 0) codes = hn::Or(codes, hn::ShiftLeft<kWidth>(rest_(run + rest_offset_, i, n)));
    return codes;
  }

 private:
  static constexpr int kWidth = static_cast<int>(std::bit_floor(static_cast<unsigned>(kBits)));
  static constexpr int kRest = kBits - kWidth;

  Unpacker<kWidth> plane_;  // needs no end: a plane is read without a byte too many
  PlaneUnpacker<kRest> rest_;
  size_t rest_offset_;
};
template <>
class PlaneUnpacker<0> {
 public:
  explicit PlaneUnpacker(int) {}
};

/// (zero, scale) pairs to fp32, by the pair's type.
HWY_INLINE void params_to_f32(const uint16_t* params, int pairs, float* out) {
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  const F32 d;
  const I32 di;
  const auto zero_lanes = hn::Eq(hn::And(hn::Iota(di, 0), hn::Set(di, 1)), hn::Zero(di));
  const auto keep = hn::IfThenElse(zero_lanes, hn::Set(di, -1), hn::Set(di, 0x7fffffff));
  for (; i + kLanes <= 2 * pairs; i += kLanes) {
    const VU16 bits = hn::LoadU(U16(), params + i);
    const auto brain = hn::BitCast(di, f32_from_bf16(bits));
    const auto is_brain = hn::RebindMask(d, hn::Lt(hn::DupOdd(brain), hn::Zero(di)));
    hn::StoreU(hn::IfThenElse(is_brain, hn::BitCast(d, hn::And(brain, keep)), f32_from_f16(bits)), d, out + i);
  }
#endif
  for (; i < 2 * pairs; i += 2) {
    const bool brain = params[i + 1] & 0x8000u;
    const uint16_t scale = params[i + 1] & 0x7fffu;
    out[i] = brain ? veloxquant::f32_from_bf16(params[i]) : veloxquant::f32_from_f16(params[i]);
    out[i + 1] = brain ? veloxquant::f32_from_bf16(scale) : veloxquant::f32_from_f16(scale);
  }
}

/// The n codes of one group from code i of the run. kGroup is the n known at compile time, 0 if none is; `aligned` says
/// that i is a multiple of kLanes.
template <int kBits, int kGroup>
HWY_INLINE void decode_group(const PlaneUnpacker<kBits>& unpack, const std::byte* run, int i, int n, bool aligned,
                             float zero, float scale, float* out) {
  const F32 d;
  const VF32 zeros = hn::Set(d, zero), scales = hn::Set(d, scale);
  const auto decode = [&](VU32 codes) { return hn::MulAdd(scales, to_float(codes), zeros); };
  const size_t first = static_cast<size_t>(i) / kLanes;
  if constexpr (kGroup > 0) {
    for (size_t v = 0; v < kGroup / kLanes; ++v) hn::StoreU(decode(unpack(run, first + v)), d, out + i + v * kLanes);
    return;
  }
  const int end = i + n;
  if (aligned) {
    for (size_t v = first; i + kLanes <= end; ++v, i += kLanes) hn::StoreU(decode(unpack(run, v)), d, out + i);
  }
  for (; i < end; i += kLanes) {
    const int lanes = std::min(kLanes, end - i);
    if (lanes == kLanes) {
      hn::StoreU(decode(unpack(run, i, lanes)), d, out + i);
    } else {
      store_n(decode(unpack(run, i, lanes)), d, out + i, lanes);
    }
  }
}

struct AffineRuns {
  const std::byte* codes;
  size_t run_bytes;
  const uint16_t* params;
  int runs, run_codes, group;
  float* out;
  int64_t ld;
};

template <int kBits, int kGroup>
HWY_NOINLINE void decode_affine_runs(AffineRuns p) {
  constexpr int64_t kBatch = 64;
  const PlaneUnpacker<kBits> unpack(p.run_codes);
  const int group = kGroup > 0 ? kGroup : p.group;
  const bool aligned = group % kLanes == 0 || p.run_codes <= group;
  const int64_t groups = (p.run_codes + group - 1) / group, pairs = p.runs * groups;
  const std::byte* run = p.codes;
  float* out = p.out;
  int first = 0;
  for (int64_t pair = 0; pair < pairs; pair += kBatch) {
    const int count = static_cast<int>(std::min(kBatch, pairs - pair));
    HWY_ALIGN float params[2 * kBatch];
    params_to_f32(p.params + 2 * pair, count, params);
    for (int i = 0; i < count; ++i) {
      const int n = kGroup > 0 ? kGroup : std::min(group, p.run_codes - first);
      decode_group<kBits, kGroup>(unpack, run, first, n, aligned, params[2 * i], params[2 * i + 1], out);
      first += group;
      if (first >= p.run_codes) {
        first = 0;
        run += p.run_bytes;
        out += p.ld;
      }
    }
  }
}

/// function(std::integral_constant<int, bits>), bits in 1..8.
template <class Function, int kBits = 1>
HWY_INLINE void with_bits(int bits, const Function& function) {
  if (bits == kBits) return function(std::integral_constant<int, kBits>());
  if constexpr (kBits < 8) with_bits<Function, kBits + 1>(bits, function);
}

void decode_affine(const std::byte* codes, size_t run_bytes, const uint16_t* params, int runs, int run_codes, int group,
                   int bits, float* out, int64_t ld) {
  VQ_CHECK(bits >= 1 && bits <= 8 && group >= 1);
  constexpr int kUsualGroup = 32;
  static_assert(kUsualGroup % kLanes == 0);
  const AffineRuns p{codes, run_bytes, params, runs, run_codes, group, out, ld};
  with_bits(bits, [&](auto b) {
    if (group == kUsualGroup && run_codes % kUsualGroup == 0) return decode_affine_runs<b(), kUsualGroup>(p);
    decode_affine_runs<b(), 0>(p);
  });
}

// --- decode_codebook -----------------------------------------------------------------------------

/// The levels of all 2^kIndexBits indices as fp32; indices beyond the codebook read 0.
template <int kIndexBits>
class Levels {
 public:
  explicit Levels(const Codebook& book) : levels_(book.levels) {
    if (book.integer == nullptr && book.size >= kSize && !kInRegisters) return;
    const int size = std::min(book.size, kSize);
    for (int i = 0; i < size; ++i) {
      table_[i] = book.integer ? book.unit * static_cast<float>(book.integer[i]) : book.levels[i];
    }
    std::fill(table_ + size, table_ + kTableSize, 0.0f);
    levels_ = table_;
  }

  HWY_INLINE VF32 operator()(VU32 index) const {
    const F32 d;
    if constexpr (!kInRegisters) {
      return hn::GatherIndex(d, levels_, hn::BitCast(I32(), index));
    } else if constexpr (kTableSize == kLanes) {
      return hn::TableLookupLanes(hn::Load(d, table_), hn::IndicesFromVec(d, index));
    } else {
      const U32 du;
      const auto lane = hn::IndicesFromVec(d, hn::And(index, hn::Set(du, kLanes - 1u)));
      const auto is_high = hn::RebindMask(d, hn::Ne(hn::And(index, hn::Set(du, kLanes * 1u)), hn::Zero(du)));
      return hn::IfThenElse(is_high, hn::TableLookupLanes(hn::Load(d, table_ + kLanes), lane),
                            hn::TableLookupLanes(hn::Load(d, table_), lane));
    }
  }

 private:
  static constexpr int kSize = 1 << kIndexBits;
  static constexpr bool kInRegisters = VQ_AVX2_OR_LATER && kSize <= 2 * kLanes && kSize <= 16;
  static constexpr int kTableSize = kSize < kLanes ? kLanes : kSize;

  HWY_ALIGN float table_[kTableSize];
  const float* levels_;
};

inline constexpr int kRowBatch = 64;

/// The arguments of decode_codebook but the codebook. By value, as AffineRuns: behind a reference every field would be
/// loaded again after every store.
struct CodebookRows {
  const std::byte* codes;
  const std::byte* low_codes;
  size_t row_bytes;
  const uint16_t* norms;
  float norm_scale;
  int rows, dim;
  float* out;
  int64_t ld;
};

template <int kBits, bool kTwoStreams>
HWY_NOINLINE void decode_codebook_rows(CodebookRows p, const Codebook& book) {
  const F32 d;
  const Levels<kTwoStreams ? 2 * kBits : kBits> levels(book);
  const size_t bytes = static_cast<size_t>(p.rows - 1) * p.row_bytes + packed_bytes(Packing::bit_string, p.dim, kBits);
  const Unpacker<kBits> unpack(p.codes + bytes), unpack_low(kTwoStreams ? p.low_codes + bytes : nullptr);
  HWY_ALIGN float factors[kRowBatch];
  for (int row = 0; row < p.rows; ++row) {
    if (row % kRowBatch == 0) kernels::to_f32(p.norms + row, std::min(kRowBatch, p.rows - row), DType::f16, factors);
    const VF32 factor = hn::Set(d, factors[row % kRowBatch] * p.norm_scale);
    const size_t offset = static_cast<size_t>(row) * p.row_bytes;
    float* out = p.out + row * p.ld;
    int i = 0;
    for (size_t v = 0; i + kLanes <= p.dim; ++v, i += kLanes) {
      VU32 index = unpack(p.codes + offset, v);
      if constexpr (kTwoStreams) index = hn::Or(hn::ShiftLeft<kBits>(index), unpack_low(p.low_codes + offset, v));
      hn::StoreU(hn::Mul(levels(index), factor), d, out + i);
    }
    if (i < p.dim) {
      const int n = p.dim - i;
      VU32 index = unpack_n<kBits>(p.codes + offset, i, n);
      if constexpr (kTwoStreams) {
        index = hn::Or(hn::ShiftLeft<kBits>(index), unpack_n<kBits>(p.low_codes + offset, i, n));
      }
      store_n(hn::Mul(levels(index), factor), d, out + i, n);
    }
  }
}

void decode_codebook(const std::byte* codes, const std::byte* low_codes, size_t row_bytes, const uint16_t* norms,
                     float norm_scale, int rows, int dim, int bits, const Codebook& book, float* out, int64_t ld) {
  VQ_CHECK(bits >= 1 && bits <= 8 && (low_codes == nullptr || bits <= 4));
  if (rows <= 0) return;
  const CodebookRows p{codes, low_codes, row_bytes, norms, norm_scale, rows, dim, out, ld};
  with_bits(bits, [&](auto b) {
    if constexpr (b() <= 4) {
      if (p.low_codes != nullptr) return decode_codebook_rows<b(), true>(p, book);
    }
    decode_codebook_rows<b(), false>(p, book);
  });
}

// --- decode_int8 ---------------------------------------------------------------------------------

void decode_int8(const std::byte* codes, const uint16_t* scales, int rows, int dim, float* out, int64_t ld) {
  const F32 d;
  const I32 di;
  const hn::Rebind<int8_t, F32> bytes;
  HWY_ALIGN float factors[kRowBatch];
  for (int row = 0; row < rows; ++row) {
    if (row % kRowBatch == 0) kernels::to_f32(scales + row, std::min(kRowBatch, rows - row), DType::f16, factors);
    const float scale = factors[row % kRowBatch];
    const VF32 factor = hn::Set(d, scale);
    const int8_t* from = reinterpret_cast<const int8_t*>(codes) + static_cast<int64_t>(row) * dim;
    float* to = out + row * ld;
    int i = 0;
    for (; i + kLanes <= dim; i += kLanes) {
      const auto code = hn::PromoteTo(di, hn::LoadU(bytes, from + i));
      hn::StoreU(hn::Mul(hn::ConvertTo(d, code), factor), d, to + i);
    }
    for (; i < dim; ++i) to[i] = static_cast<float>(from[i]) * scale;
  }
}

}  // namespace veloxquant::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace veloxquant::kernels {

HWY_EXPORT(decode_affine);
HWY_EXPORT(decode_codebook);
HWY_EXPORT(decode_int8);

void decode_affine(const std::byte* codes, size_t run_bytes, const uint16_t* params, int runs, int run_codes, int group,
                   int bits, float* out, int64_t ld) {
  HWY_DYNAMIC_DISPATCH(decode_affine)(codes, run_bytes, params, runs, run_codes, group, bits, out, ld);
}
void decode_codebook(const std::byte* codes, const std::byte* low_codes, size_t row_bytes, const uint16_t* norms,
                     float norm_scale, int rows, int dim, int bits, const Codebook& book, float* out, int64_t ld) {
  HWY_DYNAMIC_DISPATCH(decode_codebook)
  (codes, low_codes, row_bytes, norms, norm_scale, rows, dim, bits, book, out, ld);
}
void decode_int8(const std::byte* codes, const uint16_t* scales, int rows, int dim, float* out, int64_t ld) {
  HWY_DYNAMIC_DISPATCH(decode_int8)(codes, scales, rows, dim, out, ld);
}

}  // namespace veloxquant::kernels
#endif  // HWY_ONCE
