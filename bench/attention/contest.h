// How times are taken. Computers that run this are rarely quiet and never quiet for long, so everything that is to be
// compared runs side by side: rounds in which every contestant takes one sample, and ratios inside a round.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace veloxquant::bench {

/// Something that can be done again and again, each time on the next copy of its data.
class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual void use_threads(int threads) = 0;  ///< before the calls
  virtual void call() = 0;
  /// Calls until a copy comes back; 0: it is all the same whether data are in caches.
  virtual int copies() const { return 0; }
};

using WallClock = std::chrono::steady_clock;

struct Rules {
  WallClock::time_point deadline;  ///< no round begins that would end later, once `least_rounds` are done
  int least_rounds = 1, most_rounds = 1;
  double sample_s = 0.1;  ///< a sample repeats the call for at least this long
  bool warm_up = false;   ///< a round before the first, not counted
  int threads = 1;
  Contestant* evict = nullptr;  ///< called off the clock before a copy comes back within one sample
};

struct Entry {
  Contestant* contestant;
  bool once = false;            ///< too slow for every round: sampled in the first
  std::vector<double> seconds;  ///< of a call, one per round: CPU time of one thread, wall time of several
};

/// Rounds by the rules; returns how many. What `seconds` held before is forgotten.
int compete(std::vector<Entry>& entries, const Rules& rules);

double median(std::vector<double> x);
double seconds_of(const Entry& entry);
/// How many times `entry` is faster than `other`: median over the rounds of the ratio inside a round.
double ratio(const Entry& entry, const Entry& other);

}  // namespace veloxquant::bench
