#include "engine/store.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace veloxquant {

BlockRef BlockRef::allocate(Arena& arena, size_t bytes) {
  const size_t lines = Arena::slice_bytes(bytes) / Arena::kAlignment;
  VQ_CHECK(lines < size_t{1} << kLineBits);
  auto node = std::make_unique<Node>();
  node->data = arena.allocate(bytes);
  node->arena = &arena;
  node->lines = static_cast<uint32_t>(lines) & ((1u << kLineBits) - 1);
  node->references.store(1, std::memory_order_relaxed);
  node->layout = 0;
  BlockRef block;
  block.node_ = node.release();
  return block;
}

BlockRef::~BlockRef() {
  if (!node_ || node_->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  node_->arena->release(node_->data, node_->bytes());
  delete node_;
}

BlockRef BlockRef::copy(Arena& arena) const {
  BlockRef own = allocate(arena, node_->bytes());
  std::memcpy(own.node_->data, node_->data, node_->bytes());
  own.node_->layout = node_->layout;
  return own;
}

std::byte* BlockRef::writable() {
  if (node_->references.load(std::memory_order_acquire) != 1) *this = copy(*node_->arena);
  return node_->data;
}

void BlockList::use(const Codec& codec) {
  VQ_CHECK(rows() == 0);
  codec_ = &codec;
}

void BlockList::share_rows(const BlockList& other) {
  std::vector<BlockRef> blocks;
  blocks.reserve(other.blocks_.size());
  for (const BlockRef& block : other.blocks_) {
    blocks.push_back(block && other.arena_ != arena_ ? block.copy(*arena_) : block);
  }
  blocks_ = std::move(blocks);
  first_block_ = other.first_block_;
  begin_ = other.begin_;
  end_ = other.end_;
}

void BlockList::restart(int row) {
  blocks_.clear();
  begin_ = end_ = row;
  first_block_ = row / codec_->format().capacity_rows();
}

void BlockList::append(const RowsView& rows) {
  const BlockFormat& format = codec_->format();
  const int capacity = format.capacity_rows();
  VQ_CHECK(rows.rows % format.unit_rows == 0);
  int done = 0;
  while (done < rows.rows) {
    const int index = end_ / capacity;
    const int at = end_ % capacity;
    if (index - first_block_ == static_cast<int>(blocks_.size())) {
      blocks_.push_back(new_block(at));
    }
    const int count = std::min(capacity - at, rows.rows - done);
    const RowsView part{rows.x + done * rows.ld, rows.ld, count, rows.dim};
    BlockRef& into = block(index);
    if (!replaces_rows_ && count == capacity && codec_->encode_block(part, into.writable())) {
      into.set_layout(1);
    } else {
      codec_->encode(part, open(into), at / format.unit_rows);
      seal_if_full(into, at + count);
    }
    end_ += count;
    done += count;
  }
}

// Kernels compute with whole tiles: rows that never come must be numbers there.
BlockRef BlockList::new_block(int first) const {
  const size_t bytes = codec_->format().block_bytes();
  BlockRef block = BlockRef::allocate(*arena_, bytes);
  if (first > 0) std::memset(block.writable(), 0, bytes);
  return block;
}

std::byte* BlockList::open(BlockRef& block) const {
  std::byte* data = block.writable();
  if (block.view().layout != 0) codec_->unseal(data);
  block.set_layout(0);
  return data;
}

void BlockList::seal_if_full(BlockRef& block, int rows) const {
  if (replaces_rows_) return;
  if (rows == codec_->format().capacity_rows() && codec_->seal(block.writable())) block.set_layout(1);
}

void BlockList::truncate(int end) {
  if (end >= end_) return;
  VQ_CHECK(end >= begin_);
  end_ = end;
  const int capacity = codec_->format().capacity_rows();
  const int blocks = end == begin_ ? 0 : (end + capacity - 1) / capacity - first_block_;
  blocks_.resize(static_cast<size_t>(blocks));
  if (blocks == 0) first_block_ = end / capacity;
  if (blocks > 0 && end % capacity != 0) open(blocks_.back());  // as if it had never been full
}

void BlockList::drop_front(int begin) {
  if (begin <= begin_) return;
  VQ_CHECK(begin <= end_);
  if (begin == end_) return restart(begin);
  begin_ = begin;
  const int gone = begin / codec_->format().capacity_rows() - first_block_;
  blocks_.erase(blocks_.begin(), blocks_.begin() + gone);
  first_block_ += gone;
}

void BlockList::put(int row, const RowsView& x) {
  const int capacity = codec_->format().capacity_rows();
  VQ_CHECK(codec_->format().unit_rows == 1 && x.rows == 1 && row >= begin_ && row < end_);
  codec_->encode(x, open(block(row / capacity)), row % capacity);
}

void BlockList::remove(std::span<const int> rows) {
  if (rows.empty()) return;
  const BlockFormat& format = codec_->format();
  const int capacity = format.capacity_rows();
  VQ_CHECK(format.unit_rows == 1 && rows.front() >= begin_ && rows.back() < end_);
  size_t next = 0;
  int to = rows.front();
  for (int from = to; from < end_; ++from) {
    if (next < rows.size() && rows[next] == from) {
      ++next;
      continue;
    }
    const std::byte* source = open(block(from / capacity));
    std::byte* target = open(block(to / capacity));
    for (int part = 0; part < BlockFormat::kParts; ++part) {
      std::memcpy(target + format.offset(part, to % capacity), source + format.offset(part, from % capacity),
                  format.part_bytes[static_cast<size_t>(part)]);
    }
    ++to;
  }
  const int first = rows.front() / capacity;
  truncate(to);
  for (int i = first; i < to / capacity; ++i) seal_if_full(block(i), capacity);
}

int BlockList::held_rows() const {
  int held = 0;
  for_each({begin_, end_}, [&](BlockView, Range in_block, int) { held += in_block.size(); });
  return held;
}

void BlockList::decode(Range range, float* out, int64_t ld) const {
  for_each(range, [&](BlockView block, Range in_block, int row) {
    codec_->decode(block, in_block, out + (row - range.begin) * ld, ld);
  });
}

void BlockList::count_bytes(std::unordered_set<const void*>& seen, size_t& bytes) const {
  bytes += blocks_.capacity() * sizeof(BlockRef);
  for (const BlockRef& block : blocks_) {
    if (block && seen.insert(block.id()).second) bytes += block.resident_bytes();
  }
}

}  // namespace veloxquant
