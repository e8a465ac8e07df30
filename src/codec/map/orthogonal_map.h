// Orthogonal maps of rows, y = R x and x = R^T y.
#pragma once

#include <cstdint>
#include <memory>

#include "codec/map/linear_map.h"

namespace veloxquant {

class OrthogonalMap : public LinearMap {
 public:
  int frame_dim() const final { return dim(); }
  /// What undoes forward.
  void inverse(int rows, const float* y, int64_t ldy, float* x, int64_t ldx) const { adjoint(rows, y, ldy, x, ldx); }
};

/// True for 2^k, 12 * 2^k, 20 * 2^k and 28 * 2^k: the orders for which rht() has a Hadamard matrix.
bool has_hadamard(int dim);

/// `rounds` rounds of a normalised Hadamard matrix times random signs; haar(dim, seed, stream) for other orders.
std::shared_ptr<const OrthogonalMap> rht(int dim, int rounds, uint64_t seed, uint32_t stream);

/// Haar-distributed: Q * diag(sign R_ii) of the QR factorisation of a Gaussian matrix.
std::shared_ptr<const OrthogonalMap> haar(int dim, uint64_t seed, uint32_t stream);

}  // namespace veloxquant
