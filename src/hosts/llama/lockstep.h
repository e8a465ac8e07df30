// Methods and llama's own caches on the same text, token by token side by side.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hosts/llama/host.h"

namespace veloxquant::llama {

/// The last tokens of the text, which are predicted one by one.
inline constexpr int kPredictions = 512;
/// The fewest tokens before them.
inline constexpr int kLeastContext = 32;
/// Decode speed is the median over this many of the last steps.
inline constexpr int kTimedSteps = 64;

/// One column of a comparison. KL and agreement are against "llama:f16".
struct LockstepRow {
  std::string method;  ///< as it was given
  double perplexity = 0, kl_mean = 0, top1_agreement = 0;
  size_t resident_bytes = 0;    ///< ours: nbytes; llama's: what exactly these tokens need in its cache
  double bits_per_element = 0;  ///< of resident_bytes
  double prefill_tokens_per_s = 0, decode_tokens_per_s = 0;
  double encode_share = 0;  ///< of the prefill's time: rounding, encoding and storing rows; 0 for llama's caches
};

struct LockstepResult {
  std::vector<LockstepRow> rows;  ///< in the order of the methods
  double floor_kl = 0;            ///< KL of llama's f32 cache without flash attention to llama:f16
};

/// Problems of a list of methods, before a model is there: compositions and "llama:<type>". Throws
/// QuantizerConfigError.
void check_methods(std::span<const std::string> methods);

/// The first text.size() - kPredictions tokens are context. Each of the rest is predicted by the logits after its
/// predecessor and then fed, so that in the end all tokens are stored. `progress` is told tokens done, of
/// lockstep_work in all.
LockstepResult run_lockstep(LlamaHost& host, std::span<const std::string> methods, std::span<const Token> text,
                            const std::function<void(int64_t tokens)>& progress);
int64_t lockstep_work(std::span<const std::string> methods, int tokens);

}  // namespace veloxquant::llama
