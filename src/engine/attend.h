// Attention of one call over one layer's store: online softmax over segments of packed blocks.
#pragma once

#include "engine/layer.h"

namespace veloxquant {

/// Queries of one kv head that share every unpacked row: tokens * (query heads per kv head) <= about this many.
inline constexpr int kTileQueries = 64;

/// Work is cut into tasks (batch row, kv head, query tile, row split) by geometry alone, never by the number of
/// threads, and partial results are merged in ascending order of rows: the bits of the output do not depend on who
/// computes what. A call whose queries fit one tile (decode) is split over rows into spans of kSpanRows; others have
/// tiles enough.
class Attention {
 public:
  Attention(const KVCache::Layer& layer, const AttendIn& in, const AttendOut& out);

  int tasks() const { return streams() * tiles_ * splits_; }
  /// Floats that all splits of the call leave for their merge.
  size_t partial_floats() const;
  void run(int task, float* partials, std::atomic<int>* finished) const;
  /// Floats of working memory that run needs on its thread.
  size_t scratch_floats() const;

 private:
  int streams() const { return layer_.batch() * shape_.kv_heads; }
  struct Tile;     // the queries of one task and their running softmax
  struct Segment;  // rows of one block

  int first_seen(int at) const;
  Range visible(int batch_row, Range tokens) const;
  Range valid(int batch_row) const;
  int query_row(int batch_row, int token) const;
  void gather(Tile& tile) const;
  void process_span(Tile& tile, Range rows) const;
  void score(Tile& tile, Range rows) const;
  void mask_and_softmax(Tile& tile, Range rows) const;
  void accumulate(Tile& tile, Range rows) const;
  void merge(Tile& tile, const float* partials) const;
  void write(Tile& tile) const;
  void write_zeros(int batch_row, int head, int token) const;
  float* out_row(int batch_row, int token, int q_head) const;

  template <class Visit>
  void for_each_segment(const Tile& tile, Side side, Range rows, Visit&& visit) const;

  const KVCache::Layer& layer_;
  const LayerShape& shape_;
  const AttendIn& in_;
  const AttendOut& out_;
  int group_;  // query heads per kv head
  int tile_tokens_;
  int tiles_;
  int splits_;
  float scale_;
  CodecFloats key_, value_, exact_key_, exact_value_;
};

}  // namespace veloxquant
