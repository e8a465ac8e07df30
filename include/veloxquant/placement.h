// Placement decides when an exact row is sealed into its codec's form.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "veloxquant/scorer.h"
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
/// Every row is coded at its own commit, but no key before there are `rows`: a codec is fitted to them.
std::shared_ptr<const Placement> after_fit(int rows);
/// KIVI (arXiv:2402.02750) Algorithm 1 with R' = g * max(1, ceil(window / g)): keys R' * floor(rows / R'), values
/// max(0, rows - R').
std::shared_ptr<const Placement> block_flush(int g, int window);

/// Rows that stand exact and apart for ever, and outside every range that is coded (KVSink, arXiv:2508.04257). They are
/// picked when their key unit is sealed, up to `capacity` a sequence, one set for all heads.
class SinkPool {
 public:
  /// key_norm: largest mean key norm; two_sided: norms farthest from the median, by their ratio; external: only what
  /// the host names.
  enum class Signal : uint8_t { key_norm, two_sided, external };
  SinkPool(int capacity, Signal signal);

  int capacity() const { return capacity_; }
  const Scorer& scorer() const { return *scorer_; }
  /// The rows that deserve a place, best first; of equal ones the older row. `wanted` (ascending) goes before all
  /// others and, where there is any, stands for the signal. norms[row]: of all rows so far.
  std::vector<int> top(std::span<const float> norms, std::span<const int32_t> wanted) const;

 private:
  int capacity_;
  Signal signal_;
  std::shared_ptr<const Scorer> scorer_;
};

}  // namespace veloxquant
