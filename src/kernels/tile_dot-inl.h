// The loops of a tile's dot product over the vectors of one instruction set, `T`:
//   T::Sum, T::Level, T::Query  registers; T::kLanes 32-bit lanes each, T::kLevels levels held at once
//   T::load, T::query, T::zero, T::combine(high, low); T::dot(sum, level, query), which adds to sum;
//   T::store(out, sum, term, factor, add)
// Included after the target pragma of the file that instantiates it.
#include <cstring>

namespace veloxquant::kernels {
namespace {

/// `kQueries` queries times T::kLevels vectors of free indices, from x on.
template <class T, int kQueries, int kPlanes, int kVectors>
inline void dot_block(const TileDot& p, int i, int x, int c) {
  typename T::Sum sum[kQueries][kPlanes][kVectors];
#pragma GCC unroll 8
  for (auto& of_query : sum) {
#pragma GCC unroll 8
    for (auto& of_plane : of_query) {
#pragma GCC unroll 8
      for (auto& s : of_plane) s = T::zero();
    }
  }
  const uint8_t* operand = p.operand + 4 * x;
  const int8_t* q = p.q + i * p.query_stride + c * p.class_stride;
#pragma GCC unroll 1
  for (int s = 0; s < p.steps; ++s, operand += 4 * p.width, q += 4) {
    typename T::Level level[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) level[v] = T::load(operand + 4 * T::kLanes * v);
#pragma GCC unroll 8
    for (int n = 0; n < kQueries; ++n) {
#pragma GCC unroll 8
      for (int plane = 0; plane < kPlanes; ++plane) {
        int32_t quad;
        std::memcpy(&quad, q + n * p.query_stride + plane * p.plane_stride, sizeof quad);
        const typename T::Query query = T::query(quad);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) T::dot(sum[n][plane][v], level[v], query);
      }
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < kQueries; ++n) {
    const DotTerm& term = p.terms[(i + n) * p.term_stride + c];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int at = x + v * T::kLanes;
      typename T::Sum total = sum[n][0][v];
      if constexpr (kPlanes == 2) total = T::combine(total, sum[n][1][v]);
      T::store(p.out + (i + n) * p.ld + at, total, term, p.factor ? p.factor + at : nullptr, p.add);
    }
  }
}

template <class T, int kQueries, int kPlanes>
void dot_queries(const TileDot& p, int i) {
  constexpr int kWide = T::kVectors * T::kLanes;  // divides 32
  int x = 0;
  for (; x + kWide <= p.width; x += kWide) {
    dot_block<T, kQueries, kPlanes, T::kVectors>(p, i, x, p.class_stride == 0 ? 0 : x / 32);
  }
  for (; x < p.width; x += T::kLanes) dot_block<T, kQueries, kPlanes, 1>(p, i, x, p.class_stride == 0 ? 0 : x / 32);
}

template <class T, int kPlanes>
void dot_planes(const TileDot& p) {
  constexpr int kMost = T::kQueries[kPlanes - 1];
  int i = 0;
  for (; i + kMost <= p.queries; i += kMost) dot_queries<T, kMost, kPlanes>(p, i);
  const int left = p.queries - i;
  if constexpr (kMost > 3) {
    if (left == 3) return dot_queries<T, 3, kPlanes>(p, i);
  }
  if constexpr (kMost > 2) {
    if (left >= 2) {
      dot_queries<T, 2, kPlanes>(p, i);
      i += 2;
    }
  }
  if constexpr (kMost > 1) {
    for (; i < p.queries; ++i) dot_queries<T, 1, kPlanes>(p, i);
  }
}

template <class T>
void tile_dot(const TileDot& p) {
  if (p.planes == 2) {
    dot_planes<T, 2>(p);
  } else {
    dot_planes<T, 1>(p);
  }
}

}  // namespace
}  // namespace veloxquant::kernels
