// Which position each stored row has, and the number its scorer keeps with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "veloxquant/retention.h"

namespace veloxquant {

/// Rows 0 .. size() - 1 of the streams that share the table. As long as rows are only appended their positions are
/// consecutive and nothing is stored for them; a table of an evictor lists them.
class RowTable {
 public:
  /// `base`: position of row 0 of a consecutive table.
  explicit RowTable(int base = 0, bool listed = false) : base_(base), listed_(listed) {}

  int size() const { return size_; }
  int holes() const { return static_cast<int>(holes_.size()) + listed_holes_; }
  int live() const { return size_ - holes(); }
  bool listed() const { return listed_; }
  /// Row r stands at position base() + r; holes apart.
  int base() const { return base_; }
  bool has_holes(Range rows) const {
    if (listed_) return listed_holes_ > 0;
    const auto first = std::lower_bound(holes_.begin(), holes_.end(), rows.begin);
    return first != holes_.end() && *first < rows.end;
  }

  int32_t position(int row) const {
    if (listed_) return positions_[static_cast<size_t>(row)];
    return std::binary_search(holes_.begin(), holes_.end(), row) ? kNoPosition : base_ + row;
  }
  /// All of them are holes.
  bool vacant(Range rows) const {
    if (holes() < rows.size()) return false;
    for (int r = rows.begin; r < rows.end; ++r) {
      if (position(r) != kNoPosition) return false;
    }
    return true;
  }
  /// out[i] = position(rows.begin + i).
  void positions(Range rows, int32_t* out) const {
    if (listed_) {
      std::copy_n(positions_.begin() + rows.begin, rows.size(), out);
      return;
    }
    for (int r = rows.begin; r < rows.end; ++r) out[r - rows.begin] = base_ + r;
    for (auto h = std::lower_bound(holes_.begin(), holes_.end(), rows.begin); h != holes_.end() && *h < rows.end; ++h) {
      out[*h - rows.begin] = kNoPosition;
    }
  }
  std::span<const int32_t> listed_positions() const { return positions_; }
  std::span<const int32_t> hole_rows() const { return holes_; }

  /// `count` rows at consecutive positions from `position` on.
  void append(int count, int position) {
    if (listed_) {
      positions_.reserve(positions_.size() + static_cast<size_t>(count));
      for (int i = 0; i < count; ++i) positions_.push_back(position + i);
    }
    size_ += count;
  }
  /// The row becomes a hole.
  void vacate(int row) {
    if (listed_) {
      positions_[static_cast<size_t>(row)] = kNoPosition;
      ++listed_holes_;
    } else {
      holes_.insert(std::lower_bound(holes_.begin(), holes_.end(), row), row);
    }
  }
  /// Rows (ascending, of a listed table) vanish; those behind them move down.
  void remove(std::span<const int> rows) {
    if (rows.empty()) return;
    remove_from(positions_, rows);
    remove_from(scores_, rows);
    size_ -= static_cast<int>(rows.size());
  }
  /// The last row takes the place of `row`.
  void replace_by_last(int row) {
    positions_[static_cast<size_t>(row)] = positions_.back();
    if (!scores_.empty()) scores_[static_cast<size_t>(row)] = scores_.back();
    truncate(size_ - 1);
  }
  void truncate(int size) {
    size_ = size;
    if (listed_) positions_.resize(static_cast<size_t>(size));
    if (scores_.size() > static_cast<size_t>(size)) scores_.resize(static_cast<size_t>(size));
    holes_.erase(std::lower_bound(holes_.begin(), holes_.end(), size), holes_.end());
  }
  /// Row `row`, a hole of a consecutive table, is there again.
  void refill(int row) { std::erase(holes_, row); }

  /// One number per row where the scorer stores them, else empty.
  std::vector<float>& scores() { return scores_; }
  const std::vector<float>& scores() const { return scores_; }

  /// Positions that are stored, and scores: 4 bytes each.
  size_t used_bytes() const { return (positions_.size() + scores_.size()) * 4; }
  size_t nbytes() const { return (positions_.capacity() + scores_.capacity() + holes_.capacity()) * 4; }

 private:
  template <class T>
  static void remove_from(std::vector<T>& x, std::span<const int> rows) {
    if (x.empty()) return;
    size_t next = 0, to = static_cast<size_t>(rows.front());
    for (size_t from = to; from < x.size(); ++from) {
      if (next < rows.size() && static_cast<size_t>(rows[next]) == from) {
        ++next;
      } else {
        x[to++] = x[from];
      }
    }
    x.resize(to);
  }

  int base_;
  bool listed_;
  int size_ = 0, listed_holes_ = 0;
  std::vector<int32_t> positions_;  // by row, if listed
  std::vector<int32_t> holes_;      // ascending, if not
  std::vector<float> scores_;
};

}  // namespace veloxquant
