// A scorer keeps one number per stored row, larger = keep, from true attention weights, from keys used as queries where
// no query is known, or from the keys alone.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "veloxquant/types.h"

namespace veloxquant {

/// One call over one stream, or over all streams of a layer whose heads share their rows.
struct ScoredCall {
  int tokens = 0;  ///< rows the call brought
  Phase phase = Phase::decode;
  bool key_proxy = false;  ///< the masses below come from keys used as queries
  bool first = false;      ///< nothing was stored before
};

/// Stateless; the engine stores the numbers with the rows, so that they move with them.
class Scorer {
 public:
  virtual ~Scorer() = default;
  virtual std::string name() const = 0;

  /// Whether the numbers stay with the rows between calls, 4 bytes each.
  virtual bool stored() const { return true; }
  /// Whether update() wants masses: mass[row] = sum over the call's queries i that see the row of query_weight(i) times
  /// the attention weight of the row, a mean over the query heads of the stream.
  virtual bool wants_mass(Phase) const { return false; }
  /// A scorer that only selection at once needs: masses are computed when rows will be dropped and not otherwise.
  virtual bool only_for_selection() const { return false; }
  virtual float query_weight(int /*i*/, int /*tokens*/) const { return 0; }
  /// Whether a key used as a query skips its own row.
  virtual bool proxy_skips_own_row() const { return false; }
  /// The number that a new row begins with, from its key as it is stored exactly; 0 without reads_keys().
  virtual bool reads_keys() const { return false; }
  virtual float of_key(const float* /*key*/, int /*dim*/) const { return 0; }
  /// score: of all rows in their stored order, the call's own last. `mass` likewise; empty when not wanted.
  virtual void update(const ScoredCall&, std::span<const float> /*mass*/, std::span<float> /*score*/) const {}
};

/// H2O (arXiv:2306.14048): s = decay^tokens * s + sum over queries i of decay^(tokens - 1 - i) * weight.
std::shared_ptr<const Scorer> attention_sum(double decay);
/// SnapKV (arXiv:2404.14469): mean weight from the last `window` queries of a prefill. A call shorter than the window
/// carries on what earlier chunks gave.
std::shared_ptr<const Scorer> attention_window(int window);
/// TOVA (arXiv:2401.06104): the weight from the last query, nothing kept.
std::shared_ptr<const Scorer> attention_last();
/// arXiv:2406.11430: minus the key's L2 norm, or plus it.
std::shared_ptr<const Scorer> key_norm(bool keep_low);

}  // namespace veloxquant
