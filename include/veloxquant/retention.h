// Retention decides which rows of a stream exist.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "veloxquant/scorer.h"
#include "veloxquant/types.h"

namespace veloxquant {

/// The position of a hole: a row that was dropped or pooled and whose place in a sealed unit remains.
inline constexpr int32_t kNoPosition = -1;

/// The rows of one stream at a commit, the call's own included, in stored order.
struct StoredRows {
  std::span<const int32_t> positions;  ///< kNoPosition: a hole
  std::span<const float> scores;
  int consumed = 0;  ///< tokens so far, those of the call included
};

class Retention {
 public:
  /// When rows are dropped. After a prefill (or its last chunk) any codec can follow: rows wait in their exact form
  /// till then. At every call only codecs that code single rows can.
  enum class When : uint8_t { prefill, every_call };

  virtual ~Retention() = default;
  virtual std::string name() const = 0;
  virtual When when() const = 0;
  /// Most rows that are left after a drop.
  virtual int budget() const = 0;
  /// One set of positions for all heads of a layer.
  virtual bool shared_by_heads() const = 0;
  virtual const Scorer& scorer() const = 0;
  /// Rows to drop, ascending; none while the budget holds.
  virtual void select(const StoredRows& rows, std::vector<int>& drop) const = 0;
};

/// How scores of neighbouring positions are pooled before rows are ranked.
enum class Pooling : uint8_t { none, max, average };

struct TopK {
  std::string name;
  Retention::When when = Retention::When::every_call;
  int budget = 512;
  int n_sink = 4;  ///< first positions, never dropped
  int recent = 0;  ///< newest positions, never dropped
  bool shared_by_heads = false;
  Pooling pooling = Pooling::none;
  int pool_width = 1;  ///< positions, odd
  std::shared_ptr<const Scorer> scorer;
};

/// Keeps sinks, recent rows and the best scored of the rest; of equal scores the newer row stays, and a score that is
/// not a number ranks last. Where sinks and recent rows exceed the budget, sinks stay first (oldest first), then recent
/// rows (newest first).
std::shared_ptr<const Retention> topk(TopK options);

/// Rows chosen by their position alone (arXiv:2309.17453): the first `sinks` stand exact and apart for ever, of the
/// others the newest `window` exist.
struct SinkWindow {
  int sinks = 0;
  int window = 0;                ///< 0: all
  bool cache_positions = false;  ///< sinks are scored as if no row had been dropped between them and the others
};

}  // namespace veloxquant
