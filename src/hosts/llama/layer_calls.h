// What a graph calls in place of llama's cache and attention.
#pragma once

#include <cstdint>

#include "veloxquant/cache.h"

namespace veloxquant::llama {

/// New rows of one side as the graph computed them: f32 [tokens][width].
struct NewRows {
  const float* data = nullptr;
  int tokens = 0, width = 0;
  int64_t stride_token = 0;
};

/// Called from ggml's threads. Layers are llama's numbers. An exception ends the llama_decode call.
class LayerCalls {
 public:
  virtual ~LayerCalls() = default;
  virtual void append(int layer, const NewRows& keys, const NewRows& values) = 0;
  /// Entered by nth threads, after the append of the same layer.
  virtual void attend(int layer, const AttendIn& in, const AttendOut& out, int ith, int nth) = 0;
};

}  // namespace veloxquant::llama
