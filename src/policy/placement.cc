// The placements: closed formulas of the row count.
#include "veloxquant/placement.h"

#include <algorithm>
#include <cstdint>

namespace veloxquant {
namespace {

class Direct final : public Placement {
 public:
  std::string name() const override { return "direct"; }
  int frontier(Side, int rows) const override { return rows; }
};

class AfterFit final : public Placement {
 public:
  explicit AfterFit(int rows) : rows_(rows) {}
  std::string name() const override { return "after_fit"; }
  int frontier(Side side, int rows) const override { return side == Side::key && rows < rows_ ? 0 : rows; }

 private:
  int rows_;
};

class Unsealed final : public Placement {
 public:
  std::string name() const override { return "unsealed"; }
  int frontier(Side, int) const override { return 0; }
};

class AlignedWindow final : public Placement {
 public:
  AlignedWindow(int g, int window) : g_(g), window_(window) {}
  std::string name() const override { return "aligned_window"; }
  int frontier(Side, int rows) const override { return std::max(0, rows - window_) / g_ * g_; }

 private:
  int g_, window_;
};

class BlockFlush final : public Placement {
 public:
  explicit BlockFlush(int64_t rounded_window) : window_(rounded_window) {}
  std::string name() const override { return "block_flush"; }
  int frontier(Side side, int rows) const override {
    return static_cast<int>(side == Side::key ? rows / window_ * window_ : std::max<int64_t>(0, rows - window_));
  }

 private:
  int64_t window_;  // rounded up to whole groups, which may pass the largest int
};

}  // namespace

std::shared_ptr<const Placement> direct() { return std::make_shared<Direct>(); }

std::shared_ptr<const Placement> after_fit(int rows) { return std::make_shared<AfterFit>(rows); }

std::shared_ptr<const Placement> unsealed() { return std::make_shared<Unsealed>(); }

std::shared_ptr<const Placement> aligned_window(int g, int window) {
  return std::make_shared<AlignedWindow>(g, window);
}

std::shared_ptr<const Placement> block_flush(int g, int window) {
  return std::make_shared<BlockFlush>(g * std::max<int64_t>(1, (int64_t{window} + g - 1) / g));
}

}  // namespace veloxquant
