// Dense rows and masks for engines with their own attention.
#include <algorithm>

#include "engine/layer.h"
#include "kernels/kernels.h"

namespace veloxquant {
namespace {

// What an engine that works in `type` would receive.
void round_to(DType type, std::vector<float>& x) {
  if (type == DType::f32) return;
  std::vector<uint16_t> half(x.size());
  kernels::from_f32(x.data(), static_cast<int64_t>(x.size()), type, half.data());
  kernels::to_f32(half.data(), static_cast<int64_t>(x.size()), type, x.data());
}

}  // namespace

std::vector<float> KVCache::Layer::dense(Side side) const {
  const int n = max_rows(), d = dim(side);
  const size_t head_floats = static_cast<size_t>(n) * static_cast<size_t>(d);
  std::vector<float> out(static_cast<size_t>(batch() * shape_.kv_heads) * head_floats);
  for (int b = 0; b < batch(); ++b) {
    const Sequence& sequence = sequences_[static_cast<size_t>(b)];
    for (int head = 0; head < shape_.kv_heads; ++head) {
      float* rows = out.data() + static_cast<size_t>(b * shape_.kv_heads + head) * head_floats;
      const StreamSide& stream = sequence.side(head, side);
      stream.coded.decode({0, stream.coded.end()}, rows, d);
      stream.exact.decode({stream.exact.begin(), stream.exact.end()}, rows + int64_t{stream.exact.begin()} * d, d);
      if (!staging_.pending()) continue;
      const RowsView staged = staged_rows(side, b, head);
      std::copy_n(staged.x, int64_t{staged.rows} * d, rows + int64_t{sequence.rows} * d);
    }
  }
  round_to(shape_.input, out);
  return out;
}

KVCache::Fetched KVCache::Layer::fetch() const { return {max_rows(), dense(Side::key), dense(Side::value)}; }

// Nothing is evicted: column c is row c, and a query of a coming call sees the rows up to its own.
Mask KVCache::Layer::make_mask(int tokens, bool return_array, int window) const {
  const int n = max_rows();
  bool ragged = false;
  for (int b = 0; b < batch(); ++b) ragged |= rows(b) != n;
  Mask mask;
  if (tokens == 1 && window == 0 && !ragged) return mask;
  mask.kind = Mask::Kind::causal;
  if (!return_array && window == 0 && !ragged) return mask;
  mask.kind = Mask::Kind::array;
  mask.batch = std::max(1, batch());
  mask.queries = tokens;
  mask.keys = n + tokens;
  mask.allowed.resize(static_cast<size_t>(mask.batch) * static_cast<size_t>(tokens) * static_cast<size_t>(mask.keys));
  uint8_t* row = mask.allowed.data();
  for (int b = 0; b < mask.batch; ++b) {
    const int stored = batch() == 0 ? 0 : rows(b);
    for (int i = 0; i < tokens; ++i, row += mask.keys) {
      const int at = stored + i;
      const int first = window > 0 ? std::max(0, at - window + 1) : 0;
      std::fill(row + first, row + at + 1, uint8_t{1});
    }
  }
  return mask;
}

}  // namespace veloxquant
