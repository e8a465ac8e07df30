// Placement decides when an exact row is sealed into its codec's form.
#pragma once

#include <memory>
#include <string>

#include "veloxquant/types.h"

namespace veloxquant {

/// When `rows` rows of a stream are stored, the oldest frontier(side, rows) stand coded and the rest exact.
/// A pure function of the row count, which is what makes the stored bytes independent of how the tokens were cut
/// into calls; frontiers are multiples of the codec's unit, never fall as rows grow, never exceed rows.
class Placement {
 public:
  virtual ~Placement() = default;
  virtual std::string name() const = 0;
  virtual int frontier(Side side, int rows) const = 0;
};

/// Every row is coded at its own commit.
std::shared_ptr<const Placement> direct();
/// No row is ever coded.
std::shared_ptr<const Placement> unsealed();
/// F = g * floor(max(0, rows - window) / g) on both sides (align-only: window 0; sliding: g 1).
std::shared_ptr<const Placement> aligned_window(int g, int window);
/// KIVI (arXiv:2402.02750) Algorithm 1 with R' = g * max(1, ceil(window / g)): keys R' * floor(rows / R'), values
/// max(0, rows - R').
std::shared_ptr<const Placement> block_flush(int g, int window);

}  // namespace veloxquant
