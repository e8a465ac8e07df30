// Randomised Hadamard transform: R = product of `rounds` factors H * diag(signs) / sqrt(D), the signs drawn anew for
// each round. D = m * 2^k with H = H_2 x ... x H_2 x C_m (Kronecker products), where the core C_m is [1] or a Paley
// matrix (R. Paley, "On orthogonal matrices", 1933): order 12 and 20 from the quadratic residues mod 11 and 19, order
// 28 from those mod 13. D log2(D / m) + m D additions a round and row.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "codec/map/orthogonal_map.h"
#include "core/philox.h"

namespace veloxquant {
namespace {

/// 1 for squares mod q, -1 for the others, 0 for multiples of q.
int quadratic_character(int a, int q) {
  a = ((a % q) + q) % q;
  if (a == 0) return 0;
  for (int root = 1; root < q; ++root) {
    if (root * root % q == a) return 1;
  }
  return -1;
}

/// Row-major matrix of +-1 with C C^T = m I.
std::vector<float> paley_core(int m) {
  std::vector<float> core(static_cast<size_t>(m * m));
  const auto at = [&](int i, int j) -> float& { return core[static_cast<size_t>(i * m + j)]; };
  if (m != 28) {  // I + S with the skew matrix S = [0 1; -1 Q] of q = m - 1 = 3 mod 4
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < m; ++j) {
        const int s = i == 0 ? (j == 0 ? 0 : 1) : (j == 0 ? -1 : quadratic_character(j - i, m - 1));
        at(i, j) = static_cast<float>(i == j ? 1 : s);
      }
    }
    return core;
  }
  // C x [1 1; 1 -1] + I x [1 -1; -1 -1] with the symmetric conference matrix C = [0 1; 1 Q] of q = 13 = 1 mod 4
  for (int i = 0; i < 14; ++i) {
    for (int j = 0; j < 14; ++j) {
      const int c = i == 0 || j == 0 ? (i == j ? 0 : 1) : quadratic_character(j - i, 13);
      at(2 * i, 2 * j) = static_cast<float>(i == j ? 1 : c);
      at(2 * i, 2 * j + 1) = at(2 * i + 1, 2 * j) = static_cast<float>(i == j ? -1 : c);
      at(2 * i + 1, 2 * j + 1) = static_cast<float>(i == j ? -1 : -c);
    }
  }
  return core;
}

/// x[block] <- C x[block] for each block of M values; `columns` holds C column by column.
template <int M>
void apply_core(const float* columns, int dim, float* x) {
  for (int block = 0; block < dim; block += M) {
    std::array<float, M> sum{};
    for (int j = 0; j < M; ++j) {
      const float factor = x[block + j];
      for (int i = 0; i < M; ++i) sum[static_cast<size_t>(i)] += columns[j * M + i] * factor;
    }
    for (int i = 0; i < M; ++i) x[block + i] = sum[static_cast<size_t>(i)];
  }
}

/// The two passes of strides 1 and 2 in one, so that every pass left has runs of four and more.
void butterflies_of_4(int dim, float* x) {
  for (int i = 0; i < dim; i += 4) {
    const float sum0 = x[i] + x[i + 1], difference0 = x[i] - x[i + 1];
    const float sum1 = x[i + 2] + x[i + 3], difference1 = x[i + 2] - x[i + 3];
    x[i] = sum0 + sum1;
    x[i + 1] = difference0 + difference1;
    x[i + 2] = sum0 - sum1;
    x[i + 3] = difference0 - difference1;
  }
}

/// `stride` is a multiple of four; steps of four become vector instructions of the baseline.
void butterflies(int stride, float* __restrict low, float* __restrict high) {
  for (int first = 0; first < stride; first += 4) {
    for (int i = first; i < first + 4; ++i) {
      const float sum = low[i] + high[i];
      high[i] = low[i] - high[i];
      low[i] = sum;
    }
  }
}

/// Order of the core of `dim`, 0 when there is none.
int core_order(int dim) {
  int odd = dim, twos = 0;
  for (; odd > 0 && odd % 2 == 0; odd /= 2) ++twos;
  if (odd == 1) return 1;
  return twos >= 2 && (odd == 3 || odd == 5 || odd == 7) ? odd * 4 : 0;
}

class Rht final : public OrthogonalMap {
 public:
  Rht(int dim, int rounds, uint64_t seed, uint32_t stream) : dim_(dim), rounds_(rounds), core_(core_order(dim)) {
    const Random random(seed, Purpose::signs, stream);
    const float unit = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
    for (uint32_t n = 0; n < static_cast<uint32_t>(rounds * dim); ++n) {  // number n is bit n of the drawn words
      const uint32_t word = random.words(n / 128)[n / 32 % 4];
      factors_.push_back(word >> n % 32 & 1 ? -unit : unit);
    }
    if (core_ == 1) return;
    rows_ = columns_ = paley_core(core_);
    for (size_t i = 0; i < static_cast<size_t>(core_); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const size_t n = static_cast<size_t>(core_);
        std::swap(columns_[i * n + j], columns_[j * n + i]);
      }
    }
  }

  int dim() const override { return dim_; }

  void forward(int rows, const float* x, int64_t ldx, float* y, int64_t ldy) const override {
    for (int r = 0; r < rows; ++r) {
      const float* from = x + r * ldx;
      float* to = y + r * ldy;
      for (int round = rounds_ - 1; round >= 0; --round, from = to) {
        multiply(round, from, to);
        hadamard(columns_.data(), to);
      }
      if (rounds_ == 0 && from != to) std::copy_n(from, dim_, to);
    }
  }

  void inverse(int rows, const float* x, int64_t ldx, float* y, int64_t ldy) const override {
    for (int r = 0; r < rows; ++r) {
      float* to = y + r * ldy;
      if (x + r * ldx != to) std::copy_n(x + r * ldx, dim_, to);
      for (int round = 0; round < rounds_; ++round) {
        hadamard(rows_.data(), to);
        multiply(round, to, to);
      }
    }
  }

 private:
  /// Signs and the normalisation of one round in one multiplication.
  void multiply(int round, const float* from, float* to) const {
    const float* factor = factors_.data() + static_cast<int64_t>(round) * dim_;
    for (int i = 0; i < dim_; ++i) to[i] = from[i] * factor[i];
  }

  /// Unnormalised H x in place; with the rows of the core in place of its columns, H^T x.
  void hadamard(const float* core, float* x) const {
    int stride = core_;
    if (dim_ == 2) {
      const float sum = x[0] + x[1];
      x[1] = x[0] - x[1];
      x[0] = sum;
      return;
    }
    if (core_ == 12) apply_core<12>(core, dim_, x);
    if (core_ == 20) apply_core<20>(core, dim_, x);
    if (core_ == 28) apply_core<28>(core, dim_, x);
    if (core_ == 1 && dim_ >= 4) {
      butterflies_of_4(dim_, x);
      stride = 4;
    }
    for (; stride < dim_; stride *= 2) {
      for (int base = 0; base < dim_; base += 2 * stride) butterflies(stride, x + base, x + base + stride);
    }
  }

  int dim_, rounds_, core_;
  std::vector<float> factors_;  // [round][dim]: sign / sqrt(dim)
  std::vector<float> rows_, columns_;
};

}  // namespace

bool has_hadamard(int dim) { return core_order(dim) != 0; }

std::shared_ptr<const OrthogonalMap> rht(int dim, int rounds, uint64_t seed, uint32_t stream) {
  if (!has_hadamard(dim)) return haar(dim, seed, stream);
  return std::make_shared<Rht>(dim, rounds, seed, stream);
}

}  // namespace veloxquant
