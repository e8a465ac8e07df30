// Runs one random model beside plain llama.
#pragma once

#include <string>

#include "model/random_models.h"

namespace veloxquant::llama::test {

struct Outcome {
  std::string kind;     ///< of attention, where the model is served
  std::string refusal;  ///< or why it is not
  double nmse = 0;      ///< of our logits against llama's f32 cache without flash attention
  double control = 0;   ///< the same of a run that must differ
};

/// Exact rows in f32: a prompt in several calls, then single tokens; compared from the prompt's last 100 tokens on. The
/// control ignores what is special about the model's attention; where nothing is, its attention is zero.
Outcome run_beside_plain(const HostOptions& model, int prompt = 100, int steps = 32);

/// Sum of squared differences over the sum of squares of `reference`.
double normalised_error(std::span<const float> reference, std::span<const float> x);

}  // namespace veloxquant::llama::test
