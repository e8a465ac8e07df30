// The caches of a whole model: one arena, one commit order, all-or-nothing trims.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
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

/// Every batch row behaves as if it were alone, whatever other rows come and go.
class CacheSet {
 public:
  /// One cache per layer. All problems of all layers are reported at once.
  CacheSet(const MethodSpec& method, std::span<const LayerShape> layers);
  /// A method for each layer; as many as there are layers.
  CacheSet(std::span<const MethodSpec> methods, std::span<const LayerShape> layers);

  int layers() const { return static_cast<int>(layers_.size()); }
  KVCache& operator[](int i) { return layers_[static_cast<size_t>(i)]; }
  const KVCache& operator[](int i) const { return layers_[static_cast<size_t>(i)]; }

  void commit();  ///< all layers, in layer order
  bool is_trimmable() const;
  /// Removes n rows from all layers or from none: 0 when any layer can't.
  int trim(int n);
  void reset();
  /// Of one layer: masks differ where methods that drop rows do.
  Mask make_mask(int tokens, bool return_array = false, int window = 0, int layer = 0);
  int batch() const;   ///< batch rows of the first layer; all layers agree after a whole step, here and below
  int offset() const;  ///< tokens consumed, maximum over batch rows
  int offset(int batch_row) const;
  int size();  ///< rows stored, maximum over layers. Settles
  bool empty() const;

  // Batch rows, in all layers or, where one throws, in none. They throw what those of KVCache do, and settle. Copies
  // and splits share the arena.
  void select(std::span<const int> batch_rows);
  CacheSet copy();
  CacheSet copy(std::span<const int> batch_rows);
  CacheSet split(std::span<const int> batch_rows);
  /// Throws UnsupportedOperation too where layers would hold different numbers of batch rows.
  void join(CacheSet&& other);

  /// The states of all layers in one piece. Settles.
  std::vector<std::byte> state();
  /// All layers or none: throws FormatError for damaged bytes and for those of other layers, methods or shapes.
  void set_state(std::span<const std::byte> bytes);

  size_t nbytes();      ///< sum over layers. Settles
  size_t used_bytes();  ///< sum over layers. Settles
  size_t staging_bytes() const;
  /// Time that commits of all layers took so far: rounding, encoding, sealing.
  double commit_seconds() const;
  /// Asks the system about its pages: for reports, not for every token.
  ArenaStats arena() const;

 private:
  CacheSet(std::shared_ptr<Arena> arena, std::vector<KVCache> layers)
      : arena_(std::move(arena)), layers_(std::move(layers)) {}
  bool takes_part(const KVCache& layer) const;
  void check_rows_agree(const CacheSet& other) const;

  std::shared_ptr<Arena> arena_;
  std::vector<KVCache> layers_;
};

}  // namespace veloxquant
