// Attention inputs of a real model, captured layer by layer in one folder:
//
//   meta.json       {"tokens": T, "layers": [{"layer", "n_head", "n_head_kv", "head_dim", "scale", "softcap",
//                   "max_bias"}, ..]}
//   layerNN_q.npy   [T, n_head, head_dim]; layerNN_k.npy and layerNN_v.npy [T, n_head_kv, head_dim]; f16 or f32
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "veloxquant/types.h"

namespace veloxquant {

struct CapturedLayer {
  LayerShape shape;  ///< input is the type of the K and V files
  float scale = 0;
  float softcap = 0;
  int tokens = 0;
  std::vector<std::byte> k_raw, v_raw;  ///< as they stand in the files
  std::vector<float> q, k, v;           ///< [tokens][heads][dim]

  /// Tokens [range) of one side as an engine would append them, and of the queries.
  Tensor rows(Side side, Range range) const;
  Tensor queries(Range range) const;
};

/// Reads and checks everything: shapes against meta.json, element types, and that every number is finite. Throws
/// std::runtime_error for a file that can't be read and FormatError for one that isn't as above.
std::vector<CapturedLayer> read_capture(const std::string& folder);

}  // namespace veloxquant
