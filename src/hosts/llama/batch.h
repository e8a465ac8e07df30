// The tokens of one llama_decode: sequence after sequence, absolute positions.
#pragma once

#include <llama.h>

#include <span>
#include <vector>

#include "hosts/llama/host.h"

namespace veloxquant::llama {

class Batch {
 public:
  Batch() = default;
  Batch(std::span<const Token> tokens, int position, Logits logits) { add(tokens, position, logits, 0); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void add(std::span<const Token> tokens, int position, Logits logits, int sequence) {
    for (const Token token : tokens) {
      tokens_.push_back(token);
      positions_.push_back(position++);  // without positions llama would start at 0 again
      sequences_.push_back(sequence);
      outputs_.push_back(logits == Logits::all);
    }
    if (logits == Logits::last && !outputs_.empty()) outputs_.back() = true;
  }

  /// Valid until the next add.
  llama_batch get() {
    sequence_counts_.assign(tokens_.size(), 1);
    sequence_lists_.clear();
    for (llama_seq_id& sequence : sequences_) sequence_lists_.push_back(&sequence);
    llama_batch batch{};
    batch.n_tokens = static_cast<int32_t>(tokens_.size());
    batch.token = tokens_.data();
    batch.pos = positions_.data();
    batch.n_seq_id = sequence_counts_.data();
    batch.seq_id = sequence_lists_.data();
    batch.logits = outputs_.data();
    return batch;
  }

 private:
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<llama_seq_id> sequences_;
  std::vector<int32_t> sequence_counts_;
  std::vector<llama_seq_id*> sequence_lists_;
  std::vector<int8_t> outputs_;
};

}  // namespace veloxquant::llama
