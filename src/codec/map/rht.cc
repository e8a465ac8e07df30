// Randomised Hadamard transform: R = product of `rounds` factors H * diag(signs) / sqrt(D), the signs drawn anew for
// each round. D = m * 2^k with H = H_2 x ... x H_2 x C_m (Kronecker products), where the core C_m is [1] or a Paley
// matrix (R. Paley, "On orthogonal matrices", 1933): order 12 and 20 from the quadratic residues mod 11 and 19, order
// 28 from those mod 13. D log2(D / m) + m D additions a round and row.
#include <cmath>
#include <utility>
#include <vector>

#include "codec/map/orthogonal_map.h"
#include "core/philox.h"
#include "kernels/kernels.h"

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
    kernels::rotate(plan(), rows, x, ldx, y, ldy);
  }
  void adjoint(int rows, const float* y, int64_t ldy, float* x, int64_t ldx) const override {
    kernels::rotate_back(plan(), rows, y, ldy, x, ldx);
  }

 private:
  kernels::HadamardRounds plan() const {
    return {dim_, rounds_, core_, factors_.data(), rows_.data(), columns_.data()};
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
