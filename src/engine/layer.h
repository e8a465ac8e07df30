// The engine of one layer: owner of everything a method would get wrong by itself. Its parts are row_table.h,
// phase.h, store, append, commit, attend, dense and state; this header is what they share.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/phase.h"
#include "engine/row_table.h"
#include "engine/store.h"
#include "veloxquant/cache.h"

namespace veloxquant {

/// Longest run of rows whose logits stand in memory at once; also the grain of row splits.
inline constexpr int kSpanRows = 2048;

/// One side of one stream: coded rows [0, frontier), exact rows [frontier, committed).
struct StreamSide {
  BlockList coded, exact;
  int rows() const { return exact.end(); }
};

/// One batch row. `seq` is its stable id: copies keep it.
struct Sequence {
  uint32_t seq = 0;
  RowTable table;
  int rows = 0;                   ///< committed
  std::vector<StreamSide> sides;  ///< [kv head * 2 + side]
  StreamSide& side(int head, Side side) { return sides[static_cast<size_t>(head * 2 + static_cast<int>(side))]; }
  const StreamSide& side(int head, Side side) const {
    return sides[static_cast<size_t>(head * 2 + static_cast<int>(side))];
  }
};

/// The rows of a call that is not committed yet, in fp32: [batch][kv head][tokens][dim].
struct Staging {
  int tokens = 0;
  Phase phase = Phase::automatic;
  std::vector<Range> valid;          ///< per batch row
  std::unique_ptr<float[]> rows[2];  ///< by side
  size_t floats[2] = {0, 0};
  bool pending() const { return tokens > 0; }
  size_t bytes() const { return (floats[0] + floats[1]) * sizeof(float); }
};

class Attention;

class KVCache::Layer {
 public:
  Layer(const MethodSpec& method, const LayerShape& shape, std::shared_ptr<Arena> arena);
  Layer(const Layer& settled);  ///< shares the blocks

  // append.cc
  void append(const Tensor& k, const Tensor& v, const CallInfo& info);
  // commit.cc
  void commit();
  int trim(int n);
  // attend.cc
  void attend(const AttendIn& in, const AttendOut& out, int ith, int nth) const;
  /// Everything that step could refuse, before its append changes anything.
  void check_step(const AttendIn& in, const Tensor& k, const Tensor& v, const CallInfo& info) const;
  // dense.cc
  Fetched fetch() const;
  std::vector<float> dense(Side side) const;
  Mask make_mask(int tokens, bool return_array, int window) const;
  // stats.cc
  CacheStats stats() const;
  // state.cc
  std::vector<std::byte> state() const;
  void set_state(std::span<const std::byte> bytes);

  void reset();
  void select(std::span<const int> batch_rows);
  int batch() const { return static_cast<int>(sequences_.size()); }
  int rows(int batch_row) const;  ///< committed and staged
  int max_rows() const;
  int dim(Side side) const { return side == Side::key ? shape_.dim_k : shape_.dim_v; }
  const Codec& coded(Side side) const { return side == Side::key ? *recipe_.key : *recipe_.value; }
  const Codec& exact(Side side) const { return *exact_[static_cast<size_t>(side)]; }
  const Codec& staged(Side side) const { return *staged_[static_cast<size_t>(side)]; }
  /// Rows of one head in the staging buffer, padding left out.
  RowsView staged_rows(Side side, int batch_row, int head) const;

  const LayerShape& shape() const { return shape_; }
  const MethodSpec& method() const { return method_; }
  double commit_seconds() const { return commit_seconds_; }
  bool trimmable() const { return method_.def->capabilities.trimmable; }

 private:
  friend class Attention;  // one attend call, in attend.cc
  void check_append(const Tensor& k, const Tensor& v, const CallInfo& info) const;
  void check_queries(const AttendIn& in, std::span<const Range> valid) const;
  void commit_side(Sequence& sequence, int head, Side side, const RowsView& fresh);
  void seal(StreamSide& stream, int frontier, const RowsView& fresh, int first_fresh) const;
  void trim_side(StreamSide& stream, Side side, int rows) const;
  Sequence new_sequence(uint32_t seq) const;
  void forget_call();
  std::string signature() const;

  MethodSpec method_;
  LayerShape shape_;
  DType store_;   // of exact rows
  int capacity_;  // rows; 0: unlimited
  Recipe recipe_;
  std::shared_ptr<const Codec> exact_[2], staged_[2];
  std::shared_ptr<Arena> arena_;
  std::vector<Sequence> sequences_;
  Staging staging_;
  double commit_seconds_ = 0;
  int call_tokens_ = 0;  // of the last append, with its ranges: what queries may be padding
  std::vector<Range> call_valid_;

  // Shared by the threads of one attend call; every counter is back at zero when the last of them leaves.
  struct Shared {
    std::atomic<int> ticket{0};
    std::unique_ptr<std::atomic<int>[]> finished;  // splits done, per (batch row, kv head)
    int streams = 0;
    std::vector<float> partials;
  };
  void reserve_shared(size_t partial_floats) const;
  size_t partial_floats(int tokens) const;
  mutable Shared shared_;
};

}  // namespace veloxquant
