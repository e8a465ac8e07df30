// Bytes of this program's heap, counted by operators new and delete of its own. Arenas map their memory and are counted
// by ArenaStats instead.
#pragma once

#include <cstddef>

namespace veloxquant::test {

class AllocationMeter {
 public:
  static size_t live_bytes();
  static size_t total_bytes();  ///< ever asked for
  /// Most live bytes since restart_peak.
  static size_t peak_bytes();
  static void restart_peak();
};

}  // namespace veloxquant::test
