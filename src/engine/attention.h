// Attention of one call over one layer's store: online softmax over segments of packed blocks.
//
// The rows of a stream are numbered [0, pool) for those that stand apart, then pool + r for row r of its table, then on
// for the rows of a pending call.
#pragma once

#include "engine/layer.h"

namespace veloxquant {

/// Queries of one kv head that share every unpacked row: tokens * (query heads per kv head) <= about this many.
inline constexpr int kTileQueries = 64;

/// Work is cut into tasks (batch row, kv head, query tile, row split) by geometry alone, never by the number of
/// threads, and partial results are merged in ascending order of rows: the bits of the output do not depend on who
/// computes what. A call whose queries fit one tile (decode) is split over rows into spans of kSpanRows; others have
/// tiles enough.
///
/// Masses: the weights of all rows stay until the tile's normalisers are known, then their sum over queries, each with
/// the scorer's weight, joins the group's.
class Attention {
 public:
  /// What a pass over the rows is for.
  struct Pass {
    bool values = true;            ///< outputs are wanted
    bool scores = false;           ///< masses are wanted
    bool keys_as_queries = false;  ///< the staged keys of each head stand in for its queries
  };
  Attention(const KVCache::Layer& layer, const AttendIn& in, const AttendOut& out, Pass pass);

  int tasks() const { return streams() * groups_ * splits_; }
  /// Floats that all splits of the call leave for their merge.
  size_t partial_floats() const;
  /// Floats of the masses of all groups, and of what splits leave for them.
  size_t mass_floats() const;
  void run(int task, float* partials, std::atomic<int>* finished, float* masses) const;
  /// Floats of working memory that run needs on its thread.
  size_t scratch_floats() const;

  const Pass& pass() const { return pass_; }
  int mass_groups() const { return groups_; }
  int mass_rows() const { return mass_rows_; }

 private:
  int streams() const { return layer_.batch() * shape_.kv_heads; }
  struct Tile;       // the queries of one task and their running softmax
  struct Segment;    // rows of one block
  struct Positions;  // of the rows of a span

  Range valid(int batch_row) const;
  int position(int batch_row, int token) const;
  int first_seen(int at) const;
  int row_end(const Tile& tile, int token) const;
  Range visible(const Tile& tile) const;
  Range span_at(const Tile& tile, Range rows, int row) const;
  Range split_rows(const Tile& tile, Range rows, int split) const;
  Tile tile_at(int stream, int index) const;
  bool scored(const Tile& tile) const;
  float query_weight(const Tile& tile, int query) const;

  void run_tile(Tile& tile, int split, float* partials, std::atomic<int>* finished, float* masses) const;
  void gather(Tile& tile) const;
  void process_span(Tile& tile, Range rows) const;
  void score(Tile& tile, Range rows) const;
  Positions positions(const Tile& tile, Range rows) const;
  void mask_and_softmax(Tile& tile, Range rows) const;
  void accumulate(Tile& tile, Range rows) const;
  void merge(Tile& tile, const float* partials) const;
  void normalise(Tile& tile) const;
  const Codec& coded(const Tile& tile, Side side) const;
  void write(Tile& tile) const;
  void add_masses(const Tile& tile, Range rows, const float* maxima, float* mass) const;
  void write_zeros(int batch_row, int head, int token) const;
  void write_padding(int stream) const;
  float* out_row(int batch_row, int token, int q_head) const;

  template <class Visit>
  void for_each_segment(const Tile& tile, Side side, Range rows, Visit&& visit) const;

  const KVCache::Layer& layer_;
  const LayerShape& shape_;
  const AttendIn& in_;
  const AttendOut& out_;
  Pass pass_;
  int group_;  // query heads per kv head
  int tile_tokens_;
  int tiles_;
  int groups_;  // of tiles, each run by one thread: all tiles, or few when their masses are kept
  int splits_;
  int mass_rows_ = 0;  // of the longest stream
  int value_dim_;      // channels of a stored value
  float scale_;
  CodecFloats key_, value_, exact_key_, exact_value_;
};

}  // namespace veloxquant
