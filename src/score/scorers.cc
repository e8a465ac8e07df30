// The scorers: closed formulas over weighted column sums of attention weights, or over keys.
#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"
#include "veloxquant/scorer.h"

namespace veloxquant {
namespace {

class AttentionSum final : public Scorer {
 public:
  explicit AttentionSum(double decay) : decay_(decay) {}
  std::string name() const override { return "attention_sum"; }
  bool wants_mass(Phase) const override { return true; }
  float query_weight(int i, int tokens) const override { return static_cast<float>(std::pow(decay_, tokens - 1 - i)); }
  bool proxy_skips_own_row() const override { return true; }
  void update(const ScoredCall& call, std::span<const float> mass, std::span<float> score) const override {
    const auto decay = static_cast<float>(std::pow(decay_, call.tokens));
    // Without its own weight the very first row would never gain any.
    if (call.key_proxy && call.first && !score.empty()) score[0] = static_cast<float>(1 / decay_);
    for (size_t r = 0; r < score.size(); ++r) score[r] = decay * score[r] + mass[r];
  }

 private:
  double decay_;
};

class AttentionWindow final : public Scorer {
 public:
  explicit AttentionWindow(int window) : window_(window) {}
  std::string name() const override { return "attention_window"; }
  bool wants_mass(Phase phase) const override { return phase != Phase::decode; }
  float query_weight(int i, int tokens) const override {
    const int voters = std::min(window_, tokens);
    return i >= tokens - voters ? 1.0f / static_cast<float>(voters) : 0.0f;
  }
  void update(const ScoredCall& call, std::span<const float> mass, std::span<float> score) const override {
    const bool carries = call.tokens < window_ && !call.first;
    const float fresh = carries ? static_cast<float>(call.tokens) / static_cast<float>(window_) : 1.0f;
    for (size_t r = 0; r < score.size(); ++r) score[r] = fresh * mass[r] + (1 - fresh) * score[r];
  }

 private:
  int window_;
};

class AttentionLast final : public Scorer {
 public:
  std::string name() const override { return "attention_last"; }
  bool stored() const override { return false; }
  bool wants_mass(Phase) const override { return true; }
  bool only_for_selection() const override { return true; }
  float query_weight(int i, int tokens) const override { return i == tokens - 1 ? 1.0f : 0.0f; }
  void update(const ScoredCall&, std::span<const float> mass, std::span<float> score) const override {
    std::copy(mass.begin(), mass.end(), score.begin());
  }
};

class KeyNorm final : public Scorer {
 public:
  explicit KeyNorm(bool keep_low) : sign_(keep_low ? -1.0f : 1.0f) {}
  std::string name() const override { return "key_norm"; }
  bool reads_keys() const override { return true; }
  float of_key(const float* key, int dim) const override {
    float square = 0;
    kernels::inner_products(key, dim, key, dim, 1, dim, &square);
    return sign_ * std::sqrt(square);
  }

 private:
  float sign_;
};

}  // namespace

std::shared_ptr<const Scorer> attention_sum(double decay) { return std::make_shared<AttentionSum>(decay); }
std::shared_ptr<const Scorer> attention_window(int window) { return std::make_shared<AttentionWindow>(window); }
std::shared_ptr<const Scorer> attention_last() { return std::make_shared<AttentionLast>(); }
std::shared_ptr<const Scorer> key_norm(bool keep_low) { return std::make_shared<KeyNorm>(keep_low); }

}  // namespace veloxquant
