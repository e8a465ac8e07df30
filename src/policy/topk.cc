// topk: sinks, recent rows and the best scored of the rest.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "veloxquant/retention.h"

namespace veloxquant {
namespace {

/// Unsigned numbers in the order of (score, position), scores that are no number first.
uint64_t rank_of(float score, int32_t position) {
  uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 and 0 are equal
  bits = std::isnan(score) ? 0 : (bits >> 31 ? ~bits : bits | 0x80000000u);
  return uint64_t{bits} << 32 | static_cast<uint32_t>(position);
}

class TopKRetention final : public Retention {
 public:
  explicit TopKRetention(TopK options) : o_(std::move(options)) {}
  std::string name() const override { return o_.name; }
  When when() const override { return o_.when; }
  int budget() const override { return o_.budget; }
  bool shared_by_heads() const override { return o_.shared_by_heads; }
  const Scorer& scorer() const override { return *o_.scorer; }

  void select(const StoredRows& rows, std::vector<int>& drop) const override {
    drop.clear();
    const int n = static_cast<int>(rows.positions.size());
    const auto live = static_cast<int>(
        std::count_if(rows.positions.begin(), rows.positions.end(), [](int32_t p) { return p != kNoPosition; }));
    if (live <= o_.budget) return;
    // What is protected, in its order of precedence, shares the budget first.
    const int sinks = std::min(o_.n_sink, o_.budget), recent = std::min(o_.recent, o_.budget - sinks);
    struct Candidate {
      uint64_t rank;
      int row;
    };
    std::vector<Candidate> candidates;
    std::vector<int> rest;
    for (int r = 0; r < n; ++r) {
      const int32_t p = rows.positions[static_cast<size_t>(r)];
      if (p != kNoPosition && p >= sinks && p < rows.consumed - recent) rest.push_back(r);
    }
    const std::vector<float> pooled = pool(rows, rest);
    candidates.reserve(rest.size());
    for (size_t i = 0; i < rest.size(); ++i) {
      candidates.push_back({rank_of(pooled[i], rows.positions[static_cast<size_t>(rest[i])]), rest[i]});
    }
    const auto by_rank = [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; };
    const auto excess = std::min(live - o_.budget, static_cast<int>(candidates.size()));
    if (excess == 1) {
      drop.push_back(std::min_element(candidates.begin(), candidates.end(), by_rank)->row);
      return;
    }
    std::nth_element(candidates.begin(), candidates.begin() + (excess - 1), candidates.end(), by_rank);
    for (int i = 0; i < excess; ++i) drop.push_back(candidates[static_cast<size_t>(i)].row);
    std::sort(drop.begin(), drop.end());
  }

 private:
  // Scores of the rows `of`, each pooled with those of the rows among them that stand near it in the text.
  std::vector<float> pool(const StoredRows& rows, const std::vector<int>& of) const {
    std::vector<float> score(of.size());
    for (size_t i = 0; i < of.size(); ++i) score[i] = rows.scores[static_cast<size_t>(of[i])];
    const int half = o_.pooling == Pooling::none ? 0 : (o_.pool_width - 1) / 2;
    if (half == 0) return score;
    const auto position = [&](size_t i) { return rows.positions[static_cast<size_t>(of[i])]; };
    std::vector<size_t> order(of.size());  // by position
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return position(a) < position(b); });
    std::vector<float> pooled(of.size());
    size_t begin = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const int32_t p = position(order[i]);
      while (position(order[begin]) < p - half) ++begin;
      float sum = 0, max = score[order[i]];
      for (size_t j = begin; j < order.size() && position(order[j]) <= p + half; ++j) {
        sum += score[order[j]];
        max = std::max(max, score[order[j]]);
      }
      pooled[order[i]] = o_.pooling == Pooling::max ? max : sum / static_cast<float>(o_.pool_width);
    }
    return pooled;
  }

  TopK o_;
};

}  // namespace

std::shared_ptr<const Retention> topk(TopK options) { return std::make_shared<TopKRetention>(std::move(options)); }

}  // namespace veloxquant
