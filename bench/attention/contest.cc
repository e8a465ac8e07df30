#include "contest.h"

#include <algorithm>
#include <ctime>

#include "core/check.h"

namespace veloxquant::bench {
namespace {

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double wall_seconds() { return std::chrono::duration<double>(WallClock::now().time_since_epoch()).count(); }

// Copies are cold at their first call: the other contestants had their turn since. Later ones need the eviction.
double sample(Contestant& contestant, const Rules& rules) {
  const auto now = rules.threads == 1 ? cpu_seconds : wall_seconds;
  double elapsed = 0;
  for (int calls = 0;;) {
    const double begin = now();
    double lap = 0;
    do {
      contestant.call();
      ++calls;
      lap = now() - begin;
      if (elapsed + lap >= rules.sample_s) return (elapsed + lap) / calls;
    } while (contestant.copies() == 0 || calls % contestant.copies() != 0);
    elapsed += lap;
    if (rules.evict != nullptr) rules.evict->call();
  }
}

void run_round(std::vector<Entry>& entries, const Rules& rules) {
  for (Entry& entry : entries) {
    if (entry.once && !entry.seconds.empty()) continue;
    entry.seconds.push_back(sample(*entry.contestant, rules));
  }
}

void forget(std::vector<Entry>& entries) {
  for (Entry& entry : entries) entry.seconds.clear();
}

}  // namespace

int compete(std::vector<Entry>& entries, const Rules& rules) {
  for (Entry& entry : entries) entry.contestant->use_threads(rules.threads);
  forget(entries);
  WallClock::duration longest{};
  if (rules.warm_up) {
    run_round(entries, rules);
    forget(entries);
  }
  int rounds = 0;
  while (rounds < rules.most_rounds) {
    const auto begin = WallClock::now();
    if (rounds >= rules.least_rounds && begin + longest > rules.deadline) break;
    run_round(entries, rules);
    // The second round forgets the first, which has the samples that are taken once.
    longest = std::max(rounds == 1 ? WallClock::duration{} : longest, WallClock::now() - begin);
    ++rounds;
  }
  return rounds;
}

double median(std::vector<double> x) {
  VQ_CHECK(!x.empty());
  std::ranges::sort(x);
  const size_t half = x.size() / 2;
  return x.size() % 2 == 1 ? x[half] : (x[half - 1] + x[half]) / 2;
}

double seconds_of(const Entry& entry) { return median(entry.seconds); }

double ratio(const Entry& entry, const Entry& other) {
  if (entry.seconds.size() != other.seconds.size()) return seconds_of(other) / seconds_of(entry);
  std::vector<double> ratios;
  for (size_t i = 0; i < entry.seconds.size(); ++i) ratios.push_back(other.seconds[i] / entry.seconds[i]);
  return median(std::move(ratios));
}

}  // namespace veloxquant::bench
