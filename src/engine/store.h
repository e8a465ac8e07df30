// Storage: blocks in the arena, shared until written, and lists of them that hold consecutive rows of one stream.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "veloxquant/codec.h"

namespace veloxquant {

/// Reference to one storage block. Copies share the bytes; whoever writes makes them its own first.
class BlockRef {
 public:
  BlockRef() = default;
  static BlockRef allocate(Arena& arena, size_t bytes);
  BlockRef(const BlockRef& other) noexcept : node_(other.node_) {
    if (node_) node_->references.fetch_add(1, std::memory_order_relaxed);
  }
  BlockRef(BlockRef&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(node_, other.node_);
    return *this;
  }
  ~BlockRef();

  explicit operator bool() const { return node_ != nullptr; }
  BlockView view() const { return {node_->data, static_cast<uint8_t>(node_->layout)}; }
  /// The bytes to write to; copied first when another reference shares them.
  std::byte* writable();
  BlockRef copy(Arena& arena) const;
  /// Of the block's content; whoever sets it has made the block writable.
  void set_layout(uint8_t layout) { node_->layout = layout & ((1u << (32 - kLineBits)) - 1); }
  /// Identity and resident bytes, for counting every block once.
  const void* id() const { return node_; }
  size_t resident_bytes() const { return node_->bytes() + sizeof(Node); }

 private:
  static constexpr int kLineBits = 28;
  struct Node {
    std::byte* data;
    Arena* arena;
    uint32_t lines : kLineBits;  // of Arena::kAlignment bytes: far more than the largest block
    uint32_t layout : 32 - kLineBits;
    std::atomic<uint32_t> references;
    size_t bytes() const { return size_t{lines} * Arena::kAlignment; }
  };
  Node* node_ = nullptr;
};

/// Rows [begin, end) of one side of one stream in one codec's form. Block i of the stream holds rows
/// [i * capacity, (i + 1) * capacity), whatever `begin` is, so the blocks of a stream never depend on its history.
class BlockList {
 public:
  /// A list whose rows are replaced one by one stays in layout 0.
  BlockList(const Codec* codec, Arena* arena, bool replaces_rows = false)
      : codec_(codec), arena_(arena), replaces_rows_(replaces_rows) {}

  int begin() const { return begin_; }
  int end() const { return end_; }
  int rows() const { return end_ - begin_; }
  const Codec& codec() const { return *codec_; }

  /// From now on rows are coded by another codec of the same format; the list is empty.
  void use(const Codec& codec);
  /// Replaces the content by that of a list of an equal codec; blocks of another arena are copied into this list's.
  void share_rows(const BlockList& other);
  /// Empties the list; the next row will be `row`.
  void restart(int row);
  /// Encodes rows (whole units) behind the end.
  void append(const RowsView& rows);
  /// Keeps rows < end / rows >= begin; blocks without rows are given back.
  void truncate(int end);
  void drop_front(int begin);
  /// Of single rows (unit_rows 1): writes one row anew; takes rows (ascending) out, so that those behind them move
  /// down.
  void put(int row, const RowsView& x);
  void remove(std::span<const int> rows);
  /// Gives back full blocks all of whose rows are holes: vacant(rows of the stream).
  template <class Vacant>
  void release_vacant(Vacant&& vacant) {
    const int capacity = codec_->format().capacity_rows();
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const int first = (first_block_ + static_cast<int>(i)) * capacity;
      if (blocks_[i] && first + capacity <= end_ && vacant(Range{first, first + capacity})) blocks_[i] = BlockRef();
    }
  }
  /// Rows [range) decoded: out[row - range.begin][dim].
  void decode(Range range, float* out, int64_t ld) const;

  /// visit(block, rows inside the block, first of these rows in the stream) for every block that meets `range` and is
  /// there.
  template <class Visit>
  void for_each(Range range, Visit&& visit) const {
    const int capacity = codec_->format().capacity_rows();
    int row = std::max(range.begin, begin_);
    const int stop = std::min(range.end, end_);
    while (row < stop) {
      const int first = row / capacity * capacity;
      const int until = std::min(stop, first + capacity);
      if (const BlockRef& found = block(row / capacity)) visit(found.view(), Range{row - first, until - first}, row);
      row = until;
    }
  }

  void count_bytes(std::unordered_set<const void*>& seen, size_t& bytes) const;
  /// Rows whose bytes are there: all but those of released blocks.
  int held_rows() const;
  /// Replaces the content by rows whose bytes fill(block bytes in layout 0, rows inside the block) writes, block after
  /// block; blocks for which vacant(rows of the stream) holds stay away.
  template <class Fill, class Vacant>
  void restore(Range rows, Fill&& fill, Vacant&& vacant) {
    restart(rows.begin);
    const BlockFormat& format = codec_->format();
    for (int row = rows.begin; row < rows.end;) {
      const int first = row / format.capacity_rows() * format.capacity_rows();
      const int until = std::min(rows.end, first + format.capacity_rows());
      const bool gone = until - first == format.capacity_rows() && vacant(Range{first, until});
      blocks_.push_back(gone ? BlockRef() : new_block(row - first));
      if (!gone) fill(blocks_.back().writable(), Range{row - first, until - first});
      end_ = row = until;
      if (!gone) seal_if_full(blocks_.back(), until - first);
    }
  }

 private:
  /// A block whose rows begin at `first` inside it.
  BlockRef new_block(int first) const;
  /// Bytes to write rows to: in layout 0.
  std::byte* open(BlockRef& block) const;
  /// A block that holds all its rows is reordered once.
  void seal_if_full(BlockRef& block, int rows) const;
  const BlockRef& block(int index) const { return blocks_[static_cast<size_t>(index - first_block_)]; }
  BlockRef& block(int index) { return blocks_[static_cast<size_t>(index - first_block_)]; }

  const Codec* codec_;
  Arena* arena_;
  bool replaces_rows_;
  std::vector<BlockRef> blocks_;
  int first_block_ = 0;  // index in the stream of blocks_[0]
  int begin_ = 0, end_ = 0;
};

}  // namespace veloxquant
