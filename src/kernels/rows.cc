// Few queries against rows in their stored element type: every row is read once, in ascending order, and converted in
// registers.
//
// score_rows sums lane l of a row's products over c = l, l + lanes, ..., then the lanes by a fixed tree (halves first),
// for as many (query, row) pairs at once as a vector has lanes. accumulate_rows gives every element of acc one chain of
// multiply-adds over ascending rows that starts from the value in memory. So neither blocks nor tails nor cutting the
// rows into several calls change a bit.
//
// Both ask for the lines of the rows to be read after these at the pace at which they read their own: whole blocks
// ahead and evenly spread. Memory then works while the registers do. Asking from closer by, or for many lines in one
// burst, takes a fifth to a half more time.
#include <algorithm>

#include "kernels/kernels.h"
#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/cache_control.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace veloxquant::kernels::HWY_NAMESPACE {

// --- element types -------------------------------------------------------------------------------

struct Float {
  using T = float;
  static HWY_INLINE VF32 load(const float* p) { return hn::LoadU(F32(), p); }
  static HWY_INLINE VF32 load_first(const float* p, int n) { return load_n(F32(), p, n); }
};

struct Half {
  using T = uint16_t;
  /// The payload of a NaN, which simd-inl.h's conversion keeps, does not matter in a sum.
  static HWY_INLINE VF32 convert(VU16 half) {
#if VQ_AVX2_OR_LATER
    return hn::PromoteTo(F32(), hn::BitCast(hn::Rebind<hwy::float16_t, F32>(), half));
#else
    return f32_from_f16_integer(half);
#endif
  }
  static HWY_INLINE VF32 load(const uint16_t* p) { return convert(hn::LoadU(U16(), p)); }
  static HWY_INLINE VF32 load_first(const uint16_t* p, int n) { return convert(load_n(U16(), p, n)); }
};

struct Brain {
  using T = uint16_t;
  static HWY_INLINE VF32 load(const uint16_t* p) { return f32_from_bf16(hn::LoadU(U16(), p)); }
  static HWY_INLINE VF32 load_first(const uint16_t* p, int n) { return f32_from_bf16(load_n(U16(), p, n)); }
};

inline constexpr int kLine = 64;

/// Asks for the lines of kBytes bytes from p on. An address that nothing is at does no harm.
template <int kBytes>
HWY_INLINE void fetch(const std::byte* p) {
  for (int at = 0; at < kBytes; at += kLine) hwy::Prefetch(p + at);
}

// --- score_rows ----------------------------------------------------------------------------------

/// Lane i of the result is the sum of the lanes of v[i]; every sum has the same tree.
HWY_INLINE VF32 sums_of_lanes(VF32 (&v)[kLanes]) {
#if HWY_TARGET == HWY_SCALAR
  return v[0];
#else
  const F32 d;
  const hn::Repartition<uint64_t, F32> pairs;
#if HWY_MAX_BYTES >= 32
  for (int i = 0; i < kLanes / 2; ++i) {
    const VF32 high = v[i + kLanes / 2];
    v[i] = hn::Add(hn::ConcatUpperLower(d, high, v[i]), hn::ConcatLowerUpper(d, high, v[i]));
  }
#endif
#if HWY_MAX_BYTES == 64
  for (int i = 0; i < 4; ++i) {
    const VF32 kept = hn::OddEvenBlocks(v[i + 4], v[i]);
    const VF32 moved = hn::SwapAdjacentBlocks(hn::OddEvenBlocks(v[i], v[i + 4]));
    v[i] = hn::Add(kept, moved);
  }
#endif
  for (int i = 0; i < 4; i += 2) {
    v[i] = hn::Add(hn::InterleaveLower(d, v[i], v[i + 1]), hn::InterleaveUpper(d, v[i], v[i + 1]));
  }
  const auto low = hn::BitCast(pairs, v[0]), high = hn::BitCast(pairs, v[2]);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, low, high)),
                 hn::BitCast(d, hn::InterleaveUpper(pairs, low, high)));
#endif
}

template <class Element>
struct Dots {
  int rows, dim;
  const float* q;
  int64_t ldq;
  const typename Element::T* x;
  int64_t ldx;
  const std::byte* ahead;  // rows to fetch, without gaps
  float* logit;
  int64_t ld;
};

inline constexpr int kMaxDotQueries = kLanes < 4 ? kLanes : 4;

/// One vector of sums: kQueries queries with as many rows from row r as fill it. With kFew fewer rows exist; the last
/// one then stands in for the missing ones and only those that exist are stored.
template <class Element, int kQueries, bool kFew>
HWY_INLINE void dot_block(const Dots<Element>& p, int r) {
  using T = typename Element::T;
  constexpr int kRows = kLanes / (kQueries == 3 ? 4 : kQueries);
  constexpr int kStep = kRows < 8 ? kRows : 8;  // rows at a time: as many as there are registers for addresses
  const F32 d;
  VF32 sum[kLanes];
  for (VF32& s : sum) s = hn::Zero(d);
  for (int first = 0; first < kRows; first += kStep) {
    const T* row[kStep];
    for (int j = 0; j < kStep; ++j) row[j] = p.x + (kFew ? std::min(first + j, p.rows - 1) : r + first + j) * p.ldx;
    const auto add = [&](auto&& load_query, auto&& load_row, int c) {
      VF32 query[kQueries];
      for (int i = 0; i < kQueries; ++i) query[i] = load_query(p.q + i * p.ldq + c);
      for (int j = 0; j < kStep; ++j) {
        const VF32 values = load_row(row[j] + c);
        for (int i = 0; i < kQueries; ++i) {
          VF32& s = sum[i * kRows + first + j];
          s = hn::MulAdd(query[i], values, s);
        }
      }
    };
    constexpr int kBytes = kStep * kLanes * static_cast<int>(sizeof(T));
    const std::byte* ahead = p.ahead + static_cast<size_t>(r + first) * static_cast<size_t>(p.dim) * sizeof(T);
    int c = 0;
    for (; c + kLanes <= p.dim; c += kLanes, ahead += kBytes) {
      fetch<kBytes>(ahead);
      add([](const float* from) { return Float::load(from); }, [](const T* from) { return Element::load(from); }, c);
    }
    if (c < p.dim) {
      const int left = p.dim - c;
      add([&](const float* from) { return Float::load_first(from, left); },
          [&](const T* from) { return Element::load_first(from, left); }, c);
    }
  }
  HWY_ALIGN float logits[kLanes];
  hn::Store(sums_of_lanes(sum), d, logits);
  for (int i = 0; i < kQueries; ++i) {
    std::memcpy(p.logit + i * p.ld + r, logits + i * kRows, sizeof(float) * static_cast<size_t>(kFew ? p.rows : kRows));
  }
}

/// kQueries queries with all rows. The last block overlaps the one before it: a result is the same in every block.
template <class Element, int kQueries>
HWY_NOINLINE void dot_queries(const Dots<Element>& p) {
  constexpr int kRows = kLanes / (kQueries == 3 ? 4 : kQueries);
  if (p.rows < kRows) {
    if (p.rows > 0) dot_block<Element, kQueries, true>(p, 0);
    return;
  }
  for (int r = 0; r < p.rows; r += kRows) dot_block<Element, kQueries, false>(p, std::min(r, p.rows - kRows));
}

template <class Element>
void dot_elements(int n, Dots<Element> p) {
  for (int i = 0; i < n;) {
    const int queries = std::min(n - i, kMaxDotQueries);
    if constexpr (kMaxDotQueries == 4) {
      if (queries == 4) dot_queries<Element, 4>(p);
      if (queries == 3) dot_queries<Element, 3>(p);
      if (queries == 2) dot_queries<Element, 2>(p);
    }
    if (queries == 1) dot_queries<Element, 1>(p);
    i += queries;
    p.q += queries * p.ldq;
    p.logit += queries * p.ld;
    p.ahead = reinterpret_cast<const std::byte*>(p.x);  // it is asked for, now: these are close
  }
}

void score_rows(int n, int rows, int dim, const float* q, int64_t ldq, const void* x, DType type, int64_t ldx,
                const void* next, float* logit, int64_t ld) {
  const auto run = [&](auto element) {
    using Element = decltype(element);
    const auto* ahead = static_cast<const std::byte*>(next ? next : x);
    dot_elements<Element>(n, {rows, dim, q, ldq, static_cast<const typename Element::T*>(x), ldx, ahead, logit, ld});
  };
  if (type == DType::f32) return run(Float());
  if (type == DType::f16) return run(Half());
  run(Brain());
}

// --- accumulate_rows -----------------------------------------------------------------------------

template <class Element>
struct Sums {
  int rows, dim;
  const float* weight;
  int64_t ldw;
  const typename Element::T* x;
  int64_t ldx;
  const std::byte* ahead;  // rows to fetch, without gaps
  float* acc;
  int64_t lda;
};

inline constexpr int kMaxSumQueries = 4;
/// Rows that all blocks of acc take in turn, so that they are read from memory once and from the cache after that.
inline constexpr int kStripe = 16;

/// Most vectors of a row beside `queries` queries: their sums, the weights and one vector stay in registers.
constexpr int max_vectors(int queries) {
  int vectors = 8;
  while (queries * vectors + queries + 1 > kRegisters) vectors /= 2;
  return vectors;
}

/// Rows [0, p.rows) into kVectors vectors of kQueries sums at column c. With kTail the last vector has only `tail`
/// lanes.
template <class Element, int kQueries, int kVectors, bool kTail>
HWY_INLINE void sum_block(const Sums<Element>& p, int c, int tail) {
  using T = typename Element::T;
  constexpr int kBytes = kVectors * kLanes * static_cast<int>(sizeof(T));
  const F32 d;
  const auto is_tail = [](int v) { return kTail && v == kVectors - 1; };
  float* acc = p.acc + c;
  VF32 sum[kQueries][kVectors];
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const float* from = acc + i * p.lda + v * kLanes;
      sum[i][v] = is_tail(v) ? Float::load_first(from, tail) : Float::load(from);
    }
  }
  const T* row = p.x + c;
  const std::byte* ahead = p.ahead + static_cast<size_t>(c) * sizeof(T);
  for (int r = 0; r < p.rows; ++r, row += p.ldx, ahead += static_cast<size_t>(p.dim) * sizeof(T)) {
    fetch<kBytes>(ahead);
    VF32 weight[kQueries];
    for (int i = 0; i < kQueries; ++i) weight[i] = hn::Set(d, p.weight[i * p.ldw + r]);
    for (int v = 0; v < kVectors; ++v) {
      const T* from = row + v * kLanes;
      const VF32 values = is_tail(v) ? Element::load_first(from, tail) : Element::load(from);
      for (int i = 0; i < kQueries; ++i) sum[i][v] = hn::MulAdd(weight[i], values, sum[i][v]);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      float* to = acc + i * p.lda + v * kLanes;
      if (is_tail(v)) {
        store_n(sum[i][v], d, to, tail);
      } else {
        hn::StoreU(sum[i][v], d, to);
      }
    }
  }
}

/// All columns of kQueries sums, from column c on.
template <class Element, int kQueries, int kVectors = max_vectors(kQueries)>
HWY_NOINLINE void sum_queries(const Sums<Element>& p, int c) {
  constexpr int kStep = kVectors * kLanes;
  for (; c + kStep <= p.dim; c += kStep) sum_block<Element, kQueries, kVectors, false>(p, c, 0);
  if constexpr (kVectors > 1) {
    if (c < p.dim) sum_queries<Element, kQueries, kVectors / 2>(p, c);
  } else if (c < p.dim) {
    sum_block<Element, kQueries, 1, true>(p, c, p.dim - c);
  }
}

template <class Element>
void sum_stripe(int n, Sums<Element> p) {
  static_assert(kMaxSumQueries == 4);
  for (int i = 0; i < n;) {
    const int queries = std::min(n - i, kMaxSumQueries);
    if (queries == 4) sum_queries<Element, 4>(p, 0);
    if (queries == 3) sum_queries<Element, 3>(p, 0);
    if (queries == 2) sum_queries<Element, 2>(p, 0);
    if (queries == 1) sum_queries<Element, 1>(p, 0);
    i += queries;
    p.weight += queries * p.ldw;
    p.acc += queries * p.lda;
    p.ahead = reinterpret_cast<const std::byte*>(p.x);  // it is asked for, now: these are close
  }
}

void accumulate_rows(int n, int rows, int dim, const float* weight, int64_t ldw, const void* x, DType type, int64_t ldx,
                     const void* next, float* acc, int64_t lda) {
  const auto run = [&](auto element) {
    using Element = decltype(element);
    using T = typename Element::T;
    const T* row = static_cast<const T*>(x);
    const auto* ahead = static_cast<const std::byte*>(next ? next : x);
    for (int r = 0; r < rows; r += kStripe) {
      const int stripe = std::min(kStripe, rows - r);
      sum_stripe<Element>(n, {stripe, dim, weight + r, ldw, row, ldx, ahead, acc, lda});
      row += stripe * ldx;
      ahead += static_cast<size_t>(stripe) * static_cast<size_t>(dim) * sizeof(T);
    }
  };
  if (type == DType::f32) return run(Float());
  if (type == DType::f16) return run(Half());
  run(Brain());
}

}  // namespace veloxquant::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace veloxquant::kernels {

HWY_EXPORT(score_rows);
HWY_EXPORT(accumulate_rows);

void score_rows(int n, int rows, int dim, const float* q, int64_t ldq, const void* x, DType type, int64_t ldx,
                const void* next, float* logit, int64_t ld) {
  HWY_DYNAMIC_DISPATCH(score_rows)(n, rows, dim, q, ldq, x, type, ldx, next, logit, ld);
}
void dot_rows(int n, int rows, int dim, const float* q, int64_t ldq, const float* x, int64_t ldx, float* logit,
              int64_t ld) {
  score_rows(n, rows, dim, q, ldq, x, DType::f32, ldx, nullptr, logit, ld);
}
void accumulate_rows(int n, int rows, int dim, const float* weight, int64_t ldw, const void* x, DType type, int64_t ldx,
                     const void* next, float* acc, int64_t lda) {
  HWY_DYNAMIC_DISPATCH(accumulate_rows)(n, rows, dim, weight, ldw, x, type, ldx, next, acc, lda);
}

}  // namespace veloxquant::kernels
#endif  // HWY_ONCE
