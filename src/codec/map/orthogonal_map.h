// Orthogonal maps of rows, y = R x and x = R^T y. fp32, one defined order of additions and no FMA, so a map gives the
// same bits on every instruction set: encoders may use it.
#pragma once

#include <cstdint>
#include <memory>

namespace veloxquant {

class OrthogonalMap {
 public:
  virtual ~OrthogonalMap() = default;
  virtual int dim() const = 0;
  /// y[r * ldy ..] = R x[r * ldx ..] for each row; y may be x with the same stride.
  virtual void forward(int rows, const float* x, int64_t ldx, float* y, int64_t ldy) const = 0;
  /// The same with R^T, which undoes forward.
  virtual void inverse(int rows, const float* x, int64_t ldx, float* y, int64_t ldy) const = 0;
};

/// True for 2^k, 12 * 2^k, 20 * 2^k and 28 * 2^k: the orders for which rht() has a Hadamard matrix.
bool has_hadamard(int dim);

/// `rounds` rounds of a normalised Hadamard matrix times random signs; haar(dim, seed, stream) for other orders.
std::shared_ptr<const OrthogonalMap> rht(int dim, int rounds, uint64_t seed, uint32_t stream);

/// Haar-distributed: Q * diag(sign R_ii) of the QR factorisation of a Gaussian matrix.
std::shared_ptr<const OrthogonalMap> haar(int dim, uint64_t seed, uint32_t stream);

}  // namespace veloxquant
