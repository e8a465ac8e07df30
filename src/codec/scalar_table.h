// The tables that lloyd_row uses. What is stored is what is used: the levels are rounded first (to small integers times
// a unit, or to fp32) and the boundaries are the midpoints of the rounded levels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "veloxquant/codecs.h"

namespace veloxquant {

struct ScalarTable {
  std::vector<float> levels;    ///< ascending in one stage, [high][low] in two
  std::vector<int8_t> integer;  ///< empty, or levels = unit * integer
  float unit = 0;

  kernels::Codebook book() const {
    return {static_cast<int>(levels.size()), levels.data(), integer.empty() ? nullptr : integer.data(), unit};
  }
};

struct LloydTables {
  ScalarTable table;          ///< of the whole index
  std::vector<float> bounds;  ///< of the whole index when `second` is empty, else of the high half
  std::vector<float> first;   ///< levels of the high half, what the second stage subtracts
  std::vector<float> second;  ///< boundaries of the low half
};

/// Tables of lloyd_row: built once for equal arguments and shared. `laplace_scale` is used by Stage2::laplace alone.
std::shared_ptr<const LloydTables> lloyd_tables(int dim, int bits, Stage2 stage2, double laplace_scale);

}  // namespace veloxquant
