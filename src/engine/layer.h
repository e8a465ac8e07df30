// The engine of one layer: owner of everything a method would get wrong by itself. Its parts are row_table.h,
// phase.h, store, append, commit, attend, dense and state; this header is what they share.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
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

/// One side of one stream: rows that stand apart, coded rows [0, frontier) and exact rows [frontier, size) of its
/// table.
struct StreamSide {
  BlockList pool, coded, exact;
  std::shared_ptr<const Codec> fitted = nullptr;  ///< codes the rows of `coded`, where the recipe's codec needs a fit
};

/// One batch row. `seq` is its stable id: copies keep it.
struct Sequence {
  uint32_t seq = 0;
  int consumed = 0;               ///< tokens so far: the position of the next one
  int front = 0;                  ///< rows before it have left the window, or were popped
  std::vector<int32_t> pool;      ///< positions of the pool's rows, in their order there
  std::vector<int32_t> wanted;    ///< positions the host wants in the pool
  std::vector<RowTable> tables;   ///< one for all kv heads, or one for each
  std::vector<StreamSide> sides;  ///< [kv head * 2 + side]
  StreamSide& side(int head, Side side) { return sides[static_cast<size_t>(head * 2 + static_cast<int>(side))]; }
  const StreamSide& side(int head, Side side) const {
    return sides[static_cast<size_t>(head * 2 + static_cast<int>(side))];
  }
  RowTable& table(int head) { return tables[tables.size() == 1 ? 0 : static_cast<size_t>(head)]; }
  const RowTable& table(int head) const { return tables[tables.size() == 1 ? 0 : static_cast<size_t>(head)]; }
  int pooled() const { return static_cast<int>(pool.size()); }
  /// Rows that queries see.
  int live(int head) const { return pooled() + table(head).live() - front; }
};

/// The rows of a call that is not committed yet, in fp32: [batch][kv head][tokens][dim].
struct Staging {
  int tokens = 0;
  Phase phase = Phase::automatic;
  bool key_proxy = false;            ///< its masses come from keys
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
  float largest_magnitude() const;
  // commit.cc
  void commit();
  int trim(int n);
  void pop_front(int n);
  bool pops_front() const;
  void want_sinks(int batch_row, std::span<const int32_t> positions);
  // attend.cc
  void attend(const AttendIn& in, const AttendOut& out, int ith, int nth) const;
  void observe(const AttendIn& in) const;
  /// Everything that step could refuse, before its append changes anything.
  void check_step(const AttendIn& in, const Tensor& k, const Tensor& v, const CallInfo& info) const;
  // dense.cc
  void check_fetch() const;
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
  void join(const Layer& settled);
  /// By what batch rows of the other cache could behave differently here: a line each.
  std::vector<std::string> differences(const Layer& other) const;
  int batch() const { return static_cast<int>(sequences_.size()); }
  int staged(int batch_row) const;  ///< rows of a pending call
  int offset(int batch_row) const;  ///< tokens consumed, those of a pending call included
  int max_offset() const;
  int rows(int batch_row) const;  ///< stored and staged, of the head with the most
  int max_rows() const;
  /// Positions of the stored rows of a stream, ascending.
  std::vector<int32_t> positions(int batch_row, int head) const;
  std::vector<float> scores(int batch_row, int head) const;
  std::vector<int32_t> pool_positions(int batch_row) const;
  /// Sides that are stored, and the one where the rows of a side are.
  std::span<const Side> sides() const { return {kSides, shape_.value_is_key_prefix ? size_t{1} : size_t{2}}; }
  Side home(Side side) const { return shape_.value_is_key_prefix ? Side::key : side; }
  int dim(Side side) const { return side == Side::key ? shape_.dim_k : shape_.dim_v; }
  const Codec& coded(Side side) const { return home(side) == Side::key ? *recipe_.key : *recipe_.value; }
  const Codec& exact(Side side) const { return *exact_[static_cast<size_t>(home(side))]; }
  const Codec& pooled(Side side) const { return *pooled_[static_cast<size_t>(home(side))]; }
  const Codec& staged(Side side) const { return *staged_[static_cast<size_t>(home(side))]; }
  /// Rows of one head in the staging buffer, padding left out.
  RowsView staged_rows(Side side, int batch_row, int head) const;

  const LayerShape& shape() const { return shape_; }
  const MethodSpec& method() const { return method_; }
  double commit_seconds() const { return commit_seconds_; }
  bool trimmable() const {
    return trimmable_ && std::ranges::all_of(sequences_, [](const Sequence& s) { return s.front == 0; });
  }
  /// Queries of the pool's rows are turned back by the rows that left the window.
  bool rotates_pool_queries() const { return recipe_.sink_window.cache_positions; }
  bool commits_at_once() const { return recipe_.query_source == QuerySource::proxy; }

 private:
  friend class Attention;
  void check_append(const Tensor& k, const Tensor& v, const CallInfo& info) const;
  void check_queries(const AttendIn& in, std::span<const Range> valid) const;
  void commit_sequence(int batch_row);
  int pool_first_rows(Sequence& sequence, int batch_row);
  void score(Sequence& sequence, RowTable& table, Range heads, int batch_row, std::vector<float>& scores) const;
  std::vector<float> mass(const RowTable& table, Range heads, int batch_row) const;
  void replace(Sequence& sequence, RowTable& table, Range heads, int batch_row, int victim);
  void drop(Sequence& sequence, RowTable& table, Range heads, std::span<const int> rows) const;
  void fill_pool(Sequence& sequence, int batch_row);
  void leave_front(Sequence& sequence, int front) const;
  void store(StreamSide& stream, Side side, const RowTable& table, const RowsView& fresh, bool hold) const;
  void fit(StreamSide& stream, const RowsView& fresh, int first_fresh) const;
  void unfit(StreamSide& stream, Side side) const;
  void gather(const StreamSide& stream, const RowsView& fresh, int first_fresh, Range rows, float* out) const;
  void seal(StreamSide& stream, Side side, const RowTable& table, int frontier, const RowsView& fresh,
            int first_fresh) const;
  static void fill_holes(const RowTable& table, Side side, Range unit, float* rows, int64_t d);
  void read_row(const StreamSide& stream, const RowsView& fresh, int first_fresh, int row, float* out) const;
  void trim_side(StreamSide& stream, Side side, int rows) const;
  void empty_pool(Sequence& sequence, int rows);
  std::vector<Sequence> read_state(std::span<const std::byte> bytes) const;
  Sequence new_sequence(uint32_t seq) const;
  void check_restored(const Sequence& sequence) const;
  void forget_call();
  std::string signature() const;

  MethodSpec method_;
  LayerShape shape_;
  DType store_;   // of exact rows
  int capacity_;  // rows; 0: unlimited
  bool fetches_;  // rows may be decoded for an engine with its own attention
  Recipe recipe_;
  bool trimmable_;
  bool replaces_rows_;  // rows are evicted one by one
  std::shared_ptr<const Codec> exact_[2], staged_[2], pooled_[2];
  std::shared_ptr<Arena> arena_;
  std::vector<Sequence> sequences_;
  Staging staging_;
  double commit_seconds_ = 0;
  int call_tokens_ = 0;  // of the last append, with its ranges: what queries may be padding
  std::vector<Range> call_valid_;
  bool scoring_ = false;                        // the pending call needs masses
  std::map<int, std::vector<int32_t>> wanted_;  // sinks of batch rows that are not there yet
  CallCounts counts_;

  // Shared by the threads of one attend call; every counter is back at zero when the last of them leaves.
  struct Shared {
    std::atomic<int> ticket{0};
    std::unique_ptr<std::atomic<int>[]> finished;  // splits done, per (batch row, kv head)
    int streams = 0;
    std::vector<float> partials;
    // Masses of the pending call: [stream][group][row], and what they are made of.
    std::vector<float> masses;
    int mass_groups = 0, mass_rows = 0;
    bool scored = false;
    std::atomic<int> late{0};  // calls that attended after their commit
  };
  void reserve_shared(size_t partial_floats, size_t mass_floats) const;
  void run(const Attention& attention, int nth) const;
  void reserve_call() const;
  bool needs_masses() const;
  bool scores_of(const AttendIn& in) const;
  void score_by_keys() const;
  const Scorer& scorer() const { return recipe_.retention->scorer(); }
  void rotate_back(float* q, int n, int positions) const;
  mutable Shared shared_;
};

}  // namespace veloxquant
