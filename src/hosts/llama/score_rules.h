// How the predictions of two runs on the same text are compared.
#pragma once

#include <span>
#include <vector>

namespace veloxquant::llama {

/// ln softmax(logits), in double.
std::vector<double> log_softmax(std::span<const float> logits);
/// The first of the largest logits.
int argmax(std::span<const float> logits);
/// KL(p || q) in nats of two results of log_softmax.
double kl_divergence(std::span<const double> log_p, std::span<const double> log_q);
/// The mean of the middle two where the number is even; 0 for no values.
double median(std::vector<double> values);

/// Scores of one run over all predictions.
class Scores {
 public:
  /// `reference` and `run`: log_softmax of the two runs' logits for one prediction; `token` is what followed.
  void add(std::span<const double> reference, std::span<const double> run, int token);

  double perplexity() const;
  double kl_mean() const;         ///< KL(reference || run)
  double top1_agreement() const;  ///< share of predictions with the same likeliest token

 private:
  int predictions_ = 0, agreed_ = 0;
  double nll_ = 0, kl_ = 0;
};

}  // namespace veloxquant::llama
