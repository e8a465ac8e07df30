// The one source of random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). Stateless: a number is a function of (key, purpose, index, draw) alone, so it depends neither on
// the order of calls nor on the batch. The counter words are (draw, index, purpose, 0).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace veloxquant {

/// What a number is drawn for. Two purposes never share numbers.
enum class Purpose : uint32_t { rotation, sketch, codebook, kmeans, tie, signs, low_rank, anchors, probes };

using PhiloxWords = std::array<uint32_t, 4>;

constexpr PhiloxWords philox4x32(PhiloxWords counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// Key of what depends on the data of one lane; `head` is the first kv head of the lane.
constexpr uint64_t lane_key(uint64_t layer_seed, uint32_t seq, uint32_t head) {
  const PhiloxWords words = philox4x32({seq, head, 0, 1}, layer_seed);
  return words[0] | uint64_t{words[1]} << 32;
}

/// Quantile of N(0, 1) for 0 < p < 1, to about 1e-16 relative.
double normal_quantile(double p);

/// Random numbers of one (key, purpose, index), addressed by their number n.
class Random {
 public:
  constexpr Random(uint64_t key, Purpose purpose, uint32_t index) : key_(key), purpose_(purpose), index_(index) {}

  constexpr PhiloxWords words(uint32_t draw) const {
    return philox4x32({draw, index_, static_cast<uint32_t>(purpose_), 0}, key_);
  }
  /// The n-th 64-bit word; a draw holds two.
  constexpr uint64_t word(uint64_t n) const {
    const PhiloxWords w = words(static_cast<uint32_t>(n / 2));
    const size_t at = static_cast<size_t>(n % 2) * 2;
    return w[at] | uint64_t{w[at + 1]} << 32;
  }
  /// Uniform in the open interval (0, 1).
  constexpr double uniform(uint64_t n) const { return (static_cast<double>(word(n) >> 11) + 0.5) * 0x1p-53; }
  double normal(uint64_t n) const { return normal_quantile(uniform(n)); }

 private:
  uint64_t key_;
  Purpose purpose_;
  uint32_t index_;
};

}  // namespace veloxquant
