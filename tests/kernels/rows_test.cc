// score_rows and accumulate_rows: parity with the reference for every element type, results that do not depend on how
// the rows are cut into calls, and no byte read outside the rows.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "core/half.h"
#include "kernels/reference.h"
#include "support.h"

namespace veloxquant::kernels {
namespace {

constexpr DType kTypes[] = {DType::f16, DType::bf16, DType::f32};

/// Memory between two pages that may not be touched: `bytes` bytes that end (or begin) at one of them.
class Fenced {
 public:
  Fenced(size_t bytes, bool at_end) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), middle = (bytes + page - 1) / page * page;
    size_ = middle + 2 * page;
    base_ = static_cast<std::byte*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(base_ + page, middle, PROT_READ | PROT_WRITE), 0);
    data_ = base_ + page + (at_end ? middle - bytes : 0);
  }
  ~Fenced() { munmap(base_, size_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte *base_, *data_;
  size_t size_;
};

struct Problem {
  /// `gap` elements between rows; they are NaN.
  Problem(int n, int rows, int dim, DType type, int gap, uint32_t seed)
      : n(n),
        rows(rows),
        dim(dim),
        type(type),
        ldx(dim + gap),
        elements(static_cast<size_t>((rows - 1) * ldx + dim)),
        x(elements * size_of(type), seed % 2 == 0) {
    Random random(seed);
    q = random.normals(static_cast<size_t>((n - 1) * ldq() + dim));
    weight = random.normals(static_cast<size_t>((n - 1) * ldw() + rows));
    std::vector<float> values = random.normals(elements);
    for (size_t i = 0; i < elements; ++i) {
      if (static_cast<int>(i % static_cast<size_t>(ldx)) >= dim) values[i] = std::numeric_limits<float>::quiet_NaN();
    }
    set(values);
  }
  void set(const std::vector<float>& values) {
    from_f32(values.data(), static_cast<int64_t>(elements), type, x.data());
  }
  int64_t ldq() const { return dim + 1; }
  int64_t ldw() const { return rows + 2; }
  int64_t ld() const { return rows + 3; }
  int64_t lda() const { return dim + 5; }
  const std::byte* row(int r) const { return x.data() + static_cast<size_t>(r * ldx) * size_of(type); }
  /// Rows to fetch: the page after x that may not be touched.
  const std::byte* next() const { return x.data() + elements * size_of(type); }

  Guarded<float> logits() const { return Guarded<float>(static_cast<size_t>((n - 1) * ld() + rows)); }
  Guarded<float> sums() const { return Guarded<float>(static_cast<size_t>((n - 1) * lda() + dim)); }

  template <class Kernel>
  void score(Kernel kernel, float* logit, int i, int queries, int r, int count) const {
    kernel(queries, count, dim, q.data() + i * ldq(), ldq(), row(r), type, ldx, next(), logit + i * ld() + r, ld());
  }
  template <class Kernel>
  void accumulate(Kernel kernel, float* acc, int i, int queries, int r, int count) const {
    kernel(queries, count, dim, weight.data() + i * ldw() + r, ldw(), row(r), type, ldx, nullptr, acc + i * lda(),
           lda());
  }
  template <class Kernel>
  Guarded<float> all_logits(Kernel kernel) const {
    Guarded<float> logit = logits();
    score(kernel, logit.data(), 0, n, 0, rows);
    return logit;
  }
  template <class Kernel>
  Guarded<float> all_sums(Kernel kernel) const {
    Guarded<float> acc = sums();
    accumulate(kernel, acc.data(), 0, n, 0, rows);
    return acc;
  }

  int n, rows, dim;
  DType type;
  int64_t ldx;
  size_t elements;
  Fenced x;
  std::vector<float> q, weight;
};

/// function(problem) for ragged and full sizes of everything.
template <class Function>
void for_problems(Function function) {
  uint32_t seed = 0;
  for (const DType type : kTypes) {
    for (const int dim : kDims) {
      for (const int n : {1, 2, 3, 4, 5, 8, 11}) {
        for (const int rows : {1, 3, 16, 39, 64}) {
          const int gap = seed % 3 == 0 ? 0 : 3;
          SCOPED_TRACE(testing::Message() << to_string(type) << ", dim " << dim << ", " << n << " queries, " << rows
                                          << " rows, gap " << gap);
          function(Problem(n, rows, dim, type, gap, seed++));
        }
      }
    }
  }
}

TEST(score_rows, agrees_with_sums_in_double_for_any_size) {
  for_problems([](const Problem& p) {
    const Guarded<float> expected = p.all_logits(reference::score_rows);
    for_every_target(
        [&](int64_t) { EXPECT_TRUE(close(p.all_logits(score_rows).all(), expected.all(), 1e-6, 2e-7 * p.dim)); });
  });
}

TEST(score_rows, equals_dot_rows_on_converted_rows) {
  for_problems([](const Problem& p) {
    std::vector<float> x(p.elements);
    to_f32(p.x.data(), static_cast<int64_t>(p.elements), p.type, x.data());
    for_every_target([&](int64_t) {
      Guarded<float> expected = p.logits();
      dot_rows(p.n, p.rows, p.dim, p.q.data(), p.ldq(), x.data(), p.ldx, expected.data(), p.ld());
      EXPECT_TRUE(same_bits(p.all_logits(score_rows).all(), expected.all()));
    });
  });
}

TEST(accumulate_rows, equals_the_reference_for_any_size) {
  for_problems([](const Problem& p) {
    const Guarded<float> expected = p.all_sums(reference::accumulate_rows);
    ASSERT_FALSE(same_bits(expected.all(), p.sums().all()));
    for_every_target([&](int64_t target) {
      const Guarded<float> sums = p.all_sums(accumulate_rows);
      if (fuses_multiply_add(target)) {
        EXPECT_TRUE(same_bits(sums.all(), expected.all()));
      } else {  // the sums begin at the guard's value
        const double largest = -Guarded<float>::guard() + 20.0 * p.rows;
        EXPECT_TRUE(close(sums.all(), expected.all(), 0, 0x1p-23 * p.rows * largest));
      }
    });
  });
}

TEST(accumulate_rows, equals_multiply_accumulate_on_converted_rows) {
  for (const DType type : kTypes) {
    for (const int n : {1, 4, 7}) {
      const Problem p(n, 50, 112, type, 3, 5);
      std::vector<float> x(p.elements);
      to_f32(p.x.data(), static_cast<int64_t>(p.elements), type, x.data());
      for_every_target([&](int64_t) {
        Guarded<float> expected = p.sums();
        multiply_accumulate(n, p.dim, p.rows, p.weight.data(), p.ldw(), 1, x.data(), p.ldx, expected.data(), p.lda());
        EXPECT_TRUE(same_bits(p.all_sums(accumulate_rows).all(), expected.all()));
      });
    }
  }
}

TEST(rows, cutting_queries_or_rows_changes_no_bit) {
  for (const DType type : kTypes) {
    for (const int dim : {12, 80, 128}) {
      const Problem p(8, 64, dim, type, 0, static_cast<uint32_t>(dim));
      for_every_target([&](int64_t) {
        Guarded<float> logits = p.logits(), sums = p.sums();
        for (int i = 0, queries = 1; i < p.n; i += queries, queries = std::min(queries + 1, p.n - i)) {
          for (int r = 0, count = 1; r < p.rows; r += count, count = std::min(count + 4, p.rows - r)) {
            p.score(score_rows, logits.data(), i, queries, r, count);
            p.accumulate(accumulate_rows, sums.data(), i, queries, r, count);
          }
        }
        EXPECT_TRUE(same_bits(logits.all(), p.all_logits(score_rows).all())) << dim;
        EXPECT_TRUE(same_bits(sums.all(), p.all_sums(accumulate_rows).all())) << dim;
      });
    }
  }
}

TEST(rows, no_rows_and_no_queries_change_nothing) {
  const Problem p(3, 5, 80, DType::f16, 0, 1);
  for_every_target([&](int64_t) {
    Guarded<float> logits = p.logits(), sums = p.sums();
    for (const auto& [queries, count] : {std::pair(0, 5), std::pair(3, 0)}) {
      p.score(score_rows, logits.data(), 0, queries, 0, count);
      p.accumulate(accumulate_rows, sums.data(), 0, queries, 0, count);
    }
    EXPECT_TRUE(same_bits(logits.all(), p.logits().all()));
    EXPECT_TRUE(same_bits(sums.all(), p.sums().all()));
  });
}

/// 16 rows of `values`, attended with ones.
void expect_exact(DType type, const std::vector<float>& values, double logit, float sum_of_first) {
  Problem p(4, 16, static_cast<int>(values.size()), type, 0, 2);
  std::vector<float> x;
  for (int r = 0; r < p.rows; ++r) x.insert(x.end(), values.begin(), values.end());
  p.set(x);
  std::fill(p.q.begin(), p.q.end(), 1.0f);
  std::fill(p.weight.begin(), p.weight.end(), 0.0625f);
  for_every_target([&](int64_t) {
    const Guarded<float> logits = p.all_logits(score_rows);
    std::vector<float> acc(static_cast<size_t>(4 * p.dim));
    accumulate_rows(4, p.rows, p.dim, p.weight.data(), p.ldw(), p.x.data(), type, p.dim, nullptr, acc.data(), p.dim);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(logits.all()[static_cast<size_t>(17 + i * p.ld())], static_cast<float>(logit));
      EXPECT_EQ(acc[static_cast<size_t>(i * p.dim)], sum_of_first);
    }
  });
}

TEST(rows, subnormal_and_largest_elements_are_exact) {
  const float f16_least = 0x1p-24f, f16_most = 65504.0f, bf16_most = 0x1.fep127f, bf16_least = 0x1p-126f;
  expect_exact(DType::f16, std::vector<float>(48, f16_least), 48 * 0x1p-24, f16_least);
  expect_exact(DType::f16, std::vector<float>(48, f16_most), 48 * 65504.0, f16_most);
  expect_exact(DType::bf16, std::vector<float>(48, bf16_least), 48 * 0x1p-126, bf16_least);
  for (const DType type : {DType::bf16, DType::f32}) {
    std::vector<float> one(48);
    one[0] = type == DType::bf16 ? bf16_most : std::numeric_limits<float>::max();
    expect_exact(type, one, double{one[0]}, one[0]);
  }
}

}  // namespace
}  // namespace veloxquant::kernels
