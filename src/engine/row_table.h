// Which position a stored row has. Nothing is evicted yet, so the table is implicit: rows are consecutive positions.
// Evictors bring an explicit one per head; everything that maps rows to positions goes through here.
#pragma once

#include "veloxquant/types.h"

namespace veloxquant {

class RowTable {
 public:
  explicit RowTable(Pos start = Pos{0}) : start_(start) {}
  Pos start() const { return start_; }
  Pos pos(Row row) const { return Pos{to_int(start_) + to_int(row)}; }
  Row row(Pos pos) const { return Row{to_int(pos) - to_int(start_)}; }

 private:
  Pos start_;
};

}  // namespace veloxquant
