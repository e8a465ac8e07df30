// The tokens of one llama_decode: one sequence, absolute positions.
#pragma once

#include <llama.h>

#include <numeric>
#include <span>
#include <vector>

#include "hosts/llama/host.h"

namespace veloxquant::llama {

class Batch {
 public:
  Batch(std::span<const Token> tokens, int position, Logits logits)
      : tokens_(tokens.begin(), tokens.end()),
        positions_(tokens.size()),
        sequence_counts_(tokens.size(), 1),
        sequences_(tokens.size(), &sequence_),
        outputs_(tokens.size(), logits == Logits::all) {
    // Without positions llama would start at 0 again.
    std::iota(positions_.begin(), positions_.end(), position);
    if (logits == Logits::last && !outputs_.empty()) outputs_.back() = true;
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  llama_batch get() {
    llama_batch batch{};
    batch.n_tokens = static_cast<int32_t>(tokens_.size());
    batch.token = tokens_.data();
    batch.pos = positions_.data();
    batch.n_seq_id = sequence_counts_.data();
    batch.seq_id = sequences_.data();
    batch.logits = outputs_.data();
    return batch;
  }

 private:
  llama_seq_id sequence_ = 0;
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<int32_t> sequence_counts_;
  std::vector<llama_seq_id*> sequences_;
  std::vector<int8_t> outputs_;
};

}  // namespace veloxquant::llama
