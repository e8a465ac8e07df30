#include "hosts/llama/score_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace veloxquant::llama {
namespace {

TEST(LogSoftmax, probabilities_sum_to_one_and_a_shift_changes_nothing) {
  const std::vector<float> logits = {1, 2, 3, -4}, shifted = {1001, 1002, 1003, 996};
  const std::vector<double> a = log_softmax(logits), b = log_softmax(shifted);
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += std::exp(a[i]);
    EXPECT_NEAR(a[i], b[i], 1e-12);
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_NEAR(a[2] - a[1], 1, 1e-12);
}

TEST(Argmax, the_first_of_equals_wins) {
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(argmax(std::vector<float>{-1}), 0);
}

TEST(Kl, two_coins) {
  const std::vector<double> p = {std::log(0.5), std::log(0.5)}, q = {std::log(0.25), std::log(0.75)};
  EXPECT_NEAR(kl_divergence(p, q), 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3), 1e-15);
  EXPECT_EQ(kl_divergence(p, p), 0);
}

TEST(Median, odd_even_and_none) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({}), 0);
}

TEST(ScoresTest, a_uniform_run_has_the_vocabulary_as_perplexity) {
  const std::vector<double> uniform(8, std::log(1.0 / 8)),
      sure = log_softmax(std::vector<float>{9, 0, 0, 0, 0, 0, 0, 0});
  Scores same, other;
  for (const int token : {0, 3}) {
    same.add(uniform, uniform, token);
    other.add(sure, uniform, token);
  }
  EXPECT_NEAR(same.perplexity(), 8, 1e-12);
  EXPECT_EQ(same.kl_mean(), 0);
  EXPECT_EQ(same.top1_agreement(), 1);
  EXPECT_NEAR(other.kl_mean(), kl_divergence(sure, uniform), 1e-15);
}

TEST(ScoresTest, agreement_counts_equal_favourites) {
  const std::vector<double> a = log_softmax(std::vector<float>{2, 1}), b = log_softmax(std::vector<float>{1, 2});
  Scores scores;
  scores.add(a, a, 0);
  scores.add(a, b, 1);
  scores.add(b, b, 1);
  scores.add(a, b, 0);
  EXPECT_EQ(scores.top1_agreement(), 0.5);
}

}  // namespace
}  // namespace veloxquant::llama
