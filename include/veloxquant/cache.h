// The cache of one attention layer: one engine for all methods.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "veloxquant/registry.h"
#include "veloxquant/stats.h"
#include "veloxquant/types.h"

namespace veloxquant {

class Arena;

/// Travels with an append.
struct CallInfo {
  Phase phase = Phase::automatic;
  std::span<const Range> valid;  ///< per batch row: tokens that are not padding; empty: all of them
};

/// Queries of one call and how their logits are made. logit = scale * q.k, then softcap * tanh(logit / softcap), then
/// alibi[q head] * -(distance), then bias; masked where the row's position is ahead of the query's, `window` or more
/// behind it, or in an earlier chunk of `chunk` positions.
struct AttendIn {
  Tensor q;                     ///< f32 [batch][tokens][q_heads][dim_k], the last tokens of each sequence
  float scale = 0;              ///< 0: 1 / sqrt(dim_k)
  float softcap = 0;            ///< 0: none
  int window = 0;               ///< 0: unlimited
  const float* bias = nullptr;  ///< [tokens][bias_ld], column = position of the row; shared by batch and heads
  int64_t bias_ld = 0;
  std::span<const float> alibi = {};  ///< slope per query head, or empty
  std::span<const float> sinks = {};  ///< learned sink logit per query head, or empty
  int chunk = 0;                      ///< 0: none
};

/// Where attend writes: f32 [batch][tokens][q_heads][dim_v], dim contiguous.
struct AttendOut {
  float* data = nullptr;
  int64_t stride_batch = 0, stride_token = 0, stride_head = 0;
};

/// Answer of make_mask. `none`: a single query sees every row; `causal`: plain causal; `array`: explicit. `heads` is 1
/// where all kv heads keep the same rows.
struct Mask {
  enum class Kind : uint8_t { none, causal, array } kind = Kind::none;
  int batch = 0, heads = 1, queries = 0, keys = 0;
  std::vector<uint8_t> allowed;  ///< [batch][heads][queries][keys] for `array`
};

/// One layer's cache. A call attends over everything stored before it, in its stored form, and over its own rows as
/// received; encoding happens afterwards, in one lazy commit: at the end of step, at the start of the next append, or
/// when a settling call is made. Errors leave the cache as it was. Used by one thread at a time, except `attend` with
/// ith/nth, which n threads enter together.
class KVCache {
 public:
  /// Throws QuantizerConfigError. `arena` is shared by the layers of a CacheSet; null: an arena of its own.
  KVCache(const MethodSpec& method, const LayerShape& shape, std::shared_ptr<Arena> arena = nullptr);
  ~KVCache();
  KVCache(KVCache&&) noexcept;
  KVCache& operator=(KVCache&&) noexcept;

  // --- the host's way: true queries
  /// Stages k [B][S][kv_heads][dim_k] and v [B][S][kv_heads][dim_v]. S = 0 is a no-op. Throws ShapeError, ValueError
  /// (NaN or infinity, with its place) or CapacityError before anything changes.
  void append(const Tensor& k, const Tensor& v, const CallInfo& info = {});
  /// Attention of the call's queries, entered by `nth` threads with ith = 0..nth-1 and no barrier of ours; the results
  /// do not depend on nth. Changes nothing that a later call could see. Throws ShapeError or ValueError (in every
  /// thread alike).
  void attend(const AttendIn& in, const AttendOut& out, int ith, int nth) const;
  /// Scores of the pending call from queries whose attention is computed elsewhere, then commit.
  void observe(const AttendIn& in);
  /// Scores, drops and seals what the last append made ripe and frees the staging buffer. Idempotent.
  void commit();
  /// append, attend, commit. Returns [B][S][q_heads][dim_v].
  std::vector<float> step(const AttendIn& in, const Tensor& k, const Tensor& v, const CallInfo& info = {});
  /// attend on one thread, then commit. Returns [B][S][q_heads][dim_v].
  std::vector<float> attend(const AttendIn& in);

  // --- the serving protocol: an engine with its own attention
  /// append; commits nothing. Returns all rows of both sides, older ones decoded and the call's own exact, rounded to
  /// the input type and widened to f32: [B][kv_heads][n][dim] by rising position, shorter streams padded with zeros at
  /// the end. With query_source=proxy it commits at once.
  struct Fetched {
    int rows = 0;
    std::vector<float> k, v;
  };
  Fetched update_and_fetch(const Tensor& k, const Tensor& v, const CallInfo& info = {});
  /// The same rows for an engine that has the call's queries at hand: `observe` follows.
  Fetched update_and_fetch(const Tensor& k, const Tensor& v, const AttendIn& queries, const CallInfo& info = {});
  /// All rows of one side as `update_and_fetch` gives them. Settles.
  std::vector<float> decode(Side side);
  /// Mask for a coming append of `tokens` tokens. Settles.
  Mask make_mask(int tokens, bool return_array = false, int window = 0);

  int batch() const;   ///< batch rows; 0 before the first append
  int offset() const;  ///< tokens consumed: RoPE position of the next token, maximum over batch rows
  int offset(int batch_row) const;
  int size();  ///< rows stored, maximum over streams. Settles
  /// Positions of the rows that one stream stores, ascending. Settles.
  std::vector<int32_t> positions(int batch_row, int head);
  /// What the method's scorer keeps with these rows, in the same order; empty where it keeps nothing. Settles.
  std::vector<float> scores(int batch_row, int head);
  /// Positions of those of a batch row that stand exact and apart, in the order they came there. Settles.
  std::vector<int32_t> pool_positions(int batch_row);
  /// Rows that should stand exact and apart, with methods that have a pool (kivi_sink); they may come later. Throws
  /// ValueError for negative or repeated positions.
  void want_sinks(int batch_row, std::span<const int32_t> positions);
  bool empty() const;               ///< nothing is stored or pending
  float largest_magnitude() const;  ///< of a number in a row; append refuses larger ones
  bool is_trimmable() const;
  /// No distance between a query and a row ever exceeds what is stored, however long the text.
  bool endless() const;
  /// Codes depend on the first rows of a sequence.
  bool learns_from_rows() const;
  bool supports_merge() const { return false; }
  /// Removes the newest min(n, rows) rows of every batch row; returns how many (maximum). Settles.
  int trim(int n);
  /// Batch rows in a new order; a row named twice is copied (blocks are shared until written). Settles.
  void select(std::span<const int> batch_rows);
  /// Appends the batch rows of another cache of the same method, option values and shape, `seq` ids included; those of
  /// another arena are copied. The other cache is empty afterwards. Throws QuantizerConfigError that names all
  /// differences. Settles both.
  void join(KVCache&& other);
  /// These batch rows as a cache of their own; the others stay, in their order. A row can't be named twice. Settles.
  KVCache split(std::span<const int> batch_rows);
  /// A second cache with the same content, or with these batch rows of it; blocks are shared until written. Settles.
  KVCache copy();
  KVCache copy(std::span<const int> batch_rows);
  /// Whether the oldest rows can leave one by one.
  bool can_pop_front() const;
  /// Drops the oldest min(n, rows) rows of every batch row, with methods that keep all rows and code each by itself;
  /// such a cache can't be trimmed any more. Throws UnsupportedOperation with other methods. Settles.
  void pop_front(int n);
  void reset();

  size_t nbytes();                ///< bytes of the allocator behind this cache. Settles
  size_t used_bytes();            ///< the method's formula. Settles
  CacheStats peek() const;        ///< everything as it stands; settles nothing
  double commit_seconds() const;  ///< that commits took so far: rounding, encoding, sealing

  /// The packed store: versioned, little-endian, equal bytes for equal content. Settles.
  std::vector<std::byte> state();
  /// Replaces the content. Throws FormatError and changes nothing when the bytes are damaged or were written by another
  /// method, option value or shape.
  void set_state(std::span<const std::byte> bytes);

  const LayerShape& shape() const;
  const MethodSpec& method() const;

  class Layer;  ///< the engine, opaque here

 private:
  explicit KVCache(std::unique_ptr<Layer> layer);
  std::unique_ptr<Layer> layer_;
};

}  // namespace veloxquant
