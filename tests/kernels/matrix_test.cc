// multiply_accumulate, dot_rows, transpose: parity with the reference, and results that do not depend on how a range
// is cut into calls.
#include <algorithm>
#include <numeric>

#include "kernels/reference.h"
#include "support.h"

namespace veloxquant::kernels {
namespace {

/// Operands of c += a * b with gaps between rows; a is stored by rows or by columns.
struct Product {
  Product(int m, int n, int k, bool a_by_columns, uint32_t seed)
      : m(m), n(n), k(k), ldb(n + 3), ldc(n + 5), a_row(a_by_columns ? 1 : k + 2), a_col(a_by_columns ? m + 1 : 1) {
    Random random(seed);
    a = random.normals(static_cast<size_t>((m - 1) * a_row + (k - 1) * a_col + 1));
    b = random.normals(static_cast<size_t>((k - 1) * ldb + n));
  }
  Guarded<float> output() const { return Guarded<float>(static_cast<size_t>((m - 1) * ldc + n)); }

  /// The part [i, i + mm) x [j, j + nn) of c, over [l, l + kk) of k.
  template <class Kernel>
  void run(Kernel kernel, float* c, int i, int mm, int j, int nn, int l, int kk) const {
    kernel(mm, nn, kk, a.data() + i * a_row + l * a_col, a_row, a_col, b.data() + l * ldb + j, ldb, c + i * ldc + j,
           ldc);
  }
  template <class Kernel>
  Guarded<float> all(Kernel kernel) const {
    Guarded<float> c = output();
    run(kernel, c.data(), 0, m, 0, n, 0, k);
    return c;
  }
  /// Largest error that rounding twice a step instead of once may add.
  double bound() const {
    double largest = 0;
    for (float v : a) largest = std::max(largest, std::abs(double{v}));
    return 0x1p-23 * k * (k * largest * 4 - Guarded<float>::guard());
  }

  int m, n, k;
  int64_t ldb, ldc, a_row, a_col;
  std::vector<float> a, b;
};

TEST(multiply_accumulate, equals_the_reference_for_any_size_and_stride) {
  for (const int m : {1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 24}) {
    for (const int n : kDims) {
      for (const int k : {1, 33, 64}) {
        const Product p(m, n, k, (m + n + k) % 2 == 0, static_cast<uint32_t>(m * 1000 + n));
        const Guarded<float> expected = p.all(reference::multiply_accumulate);
        ASSERT_FALSE(same_bits(expected.all(), p.output().all()));
        for_every_target([&](int64_t target) {
          const Guarded<float> c = p.all(multiply_accumulate);
          if (fuses_multiply_add(target)) {
            EXPECT_TRUE(same_bits(c.all(), expected.all())) << m << ' ' << n << ' ' << k;
          } else {
            EXPECT_TRUE(close(c.all(), expected.all(), 0, p.bound())) << m << ' ' << n << ' ' << k;
          }
        });
      }
    }
  }
}

TEST(multiply_accumulate, cutting_any_range_changes_no_bit) {
  for (const int n : {33, 112, 200}) {
    const Product p(13, n, 70, false, static_cast<uint32_t>(n));
    for_every_target([&](int64_t) {
      const Guarded<float> whole = p.all(multiply_accumulate);
      Guarded<float> by_k = p.output(), by_m = p.output(), by_n = p.output();
      for (int l = 0, step = 1; l < p.k; l += step, step = std::min(step + 2, p.k - l)) {
        p.run(multiply_accumulate, by_k.data(), 0, p.m, 0, n, l, step);
      }
      for (int i = 0, step = 1; i < p.m; i += step, step = std::min(step + 1, p.m - i)) {
        p.run(multiply_accumulate, by_m.data(), i, step, 0, n, 0, p.k);
      }
      for (int j = 0, step = 1; j < n; j += step, step = std::min(step + 4, n - j)) {
        p.run(multiply_accumulate, by_n.data(), 0, p.m, j, step, 0, p.k);
      }
      EXPECT_TRUE(same_bits(by_k.all(), whole.all()));
      EXPECT_TRUE(same_bits(by_m.all(), whole.all()));
      EXPECT_TRUE(same_bits(by_n.all(), whole.all()));
    });
  }
}

TEST(multiply_accumulate, empty_ranges_change_nothing) {
  const Product p(3, 20, 5, false, 1);
  for_every_target([&](int64_t) {
    Guarded<float> c = p.output();
    p.run(multiply_accumulate, c.data(), 0, p.m, 0, p.n, 0, 0);
    p.run(multiply_accumulate, c.data(), 0, 0, 0, p.n, 0, p.k);
    p.run(multiply_accumulate, c.data(), 0, p.m, 0, 0, 0, p.k);
    EXPECT_TRUE(same_bits(c.all(), p.output().all()));
  });
}

struct Dots {
  Dots(int n, int rows, int dim, uint32_t seed) : n(n), rows(rows), dim(dim), ldq(dim + 1), ldx(dim + 3), ld(rows + 2) {
    Random random(seed);
    q = random.normals(static_cast<size_t>((n - 1) * ldq + dim));
    x = random.normals(static_cast<size_t>((rows - 1) * ldx + dim));
  }
  Guarded<float> output() const { return Guarded<float>(static_cast<size_t>((n - 1) * ld + rows)); }
  template <class Kernel>
  void run(Kernel kernel, float* logit, int i, int queries, int r, int count) const {
    kernel(queries, count, dim, q.data() + i * ldq, ldq, x.data() + r * ldx, ldx, logit + i * ld + r, ld);
  }

  int n, rows, dim;
  int64_t ldq, ldx, ld;
  std::vector<float> q, x;
};

TEST(dot_rows, agrees_with_sums_in_double) {
  for (const int dim : kDims) {
    for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 15, 16}) {
      for (const int rows : {1, 5, 16, 39}) {
        const Dots p(n, rows, dim, static_cast<uint32_t>(dim * 100 + n));
        Guarded<float> expected = p.output();
        p.run(reference::dot_rows, expected.data(), 0, n, 0, rows);
        for_every_target([&](int64_t) {
          Guarded<float> logit = p.output();
          p.run(dot_rows, logit.data(), 0, n, 0, rows);
          EXPECT_TRUE(close(logit.all(), expected.all(), 1e-6, 2e-7 * dim)) << n << ' ' << rows << ' ' << dim;
        });
      }
    }
  }
}

TEST(dot_rows, a_result_depends_on_its_query_and_row_alone) {
  for (const int dim : {12, 33, 64, 112}) {
    const Dots p(11, 39, dim, static_cast<uint32_t>(dim));
    for_every_target([&](int64_t) {
      Guarded<float> whole = p.output(), single = p.output(), mixed = p.output();
      p.run(dot_rows, whole.data(), 0, p.n, 0, p.rows);
      for (int i = 0; i < p.n; ++i) {
        for (int r = 0; r < p.rows; ++r) p.run(dot_rows, single.data(), i, 1, r, 1);
      }
      for (int i = 0, step = 2; i < p.n; i += step, step = std::min(step + 1, p.n - i)) {
        p.run(dot_rows, mixed.data(), i, step, 0, 7);
        p.run(dot_rows, mixed.data(), i, step, 7, p.rows - 7);
      }
      EXPECT_TRUE(same_bits(single.all(), whole.all())) << dim;
      EXPECT_TRUE(same_bits(mixed.all(), whole.all())) << dim;
    });
  }
}

TEST(transpose, equals_the_reference_for_any_size) {
  for (const int rows : {1, 3, 4, 5, 15, 16, 17, 33, 64, 70}) {
    for (const int cols : kDims) {
      const int64_t ldx = cols + 3, ldy = rows + 1;
      std::vector<float> x(static_cast<size_t>((rows - 1) * ldx + cols));
      std::iota(x.begin(), x.end(), 1.0f);
      Guarded<float> expected(static_cast<size_t>((cols - 1) * ldy + rows));
      const Guarded<float> empty = expected;
      reference::transpose(rows, cols, x.data(), ldx, expected.data(), ldy);
      for_every_target([&](int64_t) {
        Guarded<float> y = empty;
        transpose(rows, cols, x.data(), ldx, y.data(), ldy);
        EXPECT_TRUE(same_bits(y.all(), expected.all())) << rows << ' ' << cols;
      });
    }
  }
}

}  // namespace
}  // namespace veloxquant::kernels
