#include "hosts/llama/score_rules.h"

#include <algorithm>
#include <cmath>

namespace veloxquant::llama {

std::vector<double> log_softmax(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  const double shift = largest + std::log(sum);
  std::vector<double> result(logits.size());
  std::transform(logits.begin(), logits.end(), result.begin(), [&](float x) { return x - shift; });
  return result;
}

int argmax(std::span<const float> logits) {
  return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double kl_divergence(std::span<const double> log_p, std::span<const double> log_q) {
  double sum = 0;
  for (size_t i = 0; i < log_p.size(); ++i) sum += std::exp(log_p[i]) * (log_p[i] - log_q[i]);
  return sum;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

void Scores::add(std::span<const double> reference, std::span<const double> run, int token) {
  ++predictions_;
  nll_ -= run[static_cast<size_t>(token)];
  kl_ += kl_divergence(reference, run);
  agreed_ += std::max_element(reference.begin(), reference.end()) - reference.begin() ==
             std::max_element(run.begin(), run.end()) - run.begin();
}

double Scores::perplexity() const { return std::exp(nll_ / predictions_); }
double Scores::kl_mean() const { return kl_ / predictions_; }
double Scores::top1_agreement() const { return static_cast<double>(agreed_) / predictions_; }

}  // namespace veloxquant::llama
