// The caches of a whole model: one arena, one commit order, all-or-nothing trims.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "veloxquant/cache.h"

namespace veloxquant {

struct ArenaStats {
  size_t allocated_bytes = 0;  ///< in use
  size_t reserved_bytes = 0;   ///< mapped from the system
  size_t peak_bytes = 0;       ///< most ever in use
  /// Mapped bytes that stand in 2 MiB pages; 0 too where the system does not tell.
  size_t large_page_bytes = 0;
};

class CacheSet {
 public:
  /// One cache per layer. All problems of all layers are reported at once.
  CacheSet(const MethodSpec& method, std::span<const LayerShape> layers);

  int size() const { return static_cast<int>(layers_.size()); }
  KVCache& operator[](int i) { return layers_[static_cast<size_t>(i)]; }
  const KVCache& operator[](int i) const { return layers_[static_cast<size_t>(i)]; }

  void commit();  ///< all layers, in layer order
  /// Removes n rows from all layers or from none: 0 when any layer can't.
  int trim(int n);
  void reset();
  int offset() const;   ///< of the first layer; all layers agree after a whole step
  size_t nbytes();      ///< sum over layers. Settles
  size_t used_bytes();  ///< sum over layers. Settles
  size_t staging_bytes() const;
  /// Time that commits of all layers took so far: rounding, encoding, sealing.
  double commit_seconds() const;
  /// Asks the system about its pages: for reports, not for every token.
  ArenaStats arena() const;

 private:
  std::shared_ptr<Arena> arena_;
  std::vector<KVCache> layers_;
};

}  // namespace veloxquant
