// Dense rows and masks for engines with their own attention.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "engine/layer.h"
#include "kernels/kernels.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

// What an engine that works in `type` would receive.
void round_to(DType type, std::vector<float>& x) {
  if (type == DType::f32) return;
  std::vector<uint16_t> half(x.size());
  kernels::from_f32(x.data(), static_cast<int64_t>(x.size()), type, half.data());
  kernels::to_f32(half.data(), static_cast<int64_t>(x.size()), type, x.data());
}

// Positions of the rows of a stream as they lie: the pool, then the table from the window's front on; holes among them.
std::vector<int32_t> lying_positions(const Sequence& sequence, int head) {
  const RowTable& table = sequence.table(head);
  std::vector<int32_t> positions = sequence.pool;
  positions.resize(positions.size() + static_cast<size_t>(table.size() - sequence.front));
  table.positions({sequence.front, table.size()}, positions.data() + sequence.pooled());
  return positions;
}

// Indices of the rows that are there, by rising position.
std::vector<int> order_of(const std::vector<int32_t>& positions) {
  std::vector<int> order;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] != kNoPosition) order.push_back(static_cast<int>(i));
  }
  const auto before = [&](int a, int b) {
    return positions[static_cast<size_t>(a)] < positions[static_cast<size_t>(b)];
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
  return order;
}

}  // namespace

void KVCache::Layer::check_fetch() const {
  if (fetches_) return;
  throw UnsupportedOperation(fmt::format(
      "layer {}: rows can't be fetched with fused_sdpa_memory_bound; call step, attend or observe", shape_.layer));
}

std::vector<int32_t> KVCache::Layer::positions(int batch_row, int head) const {
  const std::vector<int32_t> lying = lying_positions(sequences_[static_cast<size_t>(batch_row)], head);
  std::vector<int32_t> positions;
  for (int i : order_of(lying)) positions.push_back(lying[static_cast<size_t>(i)]);
  return positions;
}

std::vector<float> KVCache::Layer::scores(int batch_row, int head) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(batch_row)];
  const std::vector<float>& stored = sequence.table(head).scores();
  std::vector<float> scores;
  for (int i : order_of(lying_positions(sequence, head))) {
    const int row = i - sequence.pooled() + sequence.front;
    if (row >= 0 && static_cast<size_t>(row) < stored.size()) scores.push_back(stored[static_cast<size_t>(row)]);
  }
  return scores;
}

std::vector<int32_t> KVCache::Layer::pool_positions(int batch_row) const {
  return sequences_[static_cast<size_t>(batch_row)].pool;
}

std::vector<float> KVCache::Layer::dense(Side side) const {
  const int n = max_rows();
  // A value that is the beginning of a key is cut out of it.
  const int64_t d = dim(home(side)), out_d = dim(side);
  const size_t head_floats = static_cast<size_t>(n) * static_cast<size_t>(out_d);
  std::vector<float> out(static_cast<size_t>(batch() * shape_.kv_heads) * head_floats);
  std::vector<float> lying;
  for (int b = 0; b < batch(); ++b) {
    const Sequence& sequence = sequences_[static_cast<size_t>(b)];
    for (int head = 0; head < shape_.kv_heads; ++head) {
      float* rows = out.data() + static_cast<size_t>(b * shape_.kv_heads + head) * head_floats;
      const StreamSide& stream = sequence.side(head, home(side));
      const std::vector<int32_t> positions = lying_positions(sequence, head);
      const int front = sequence.front, coded = stream.coded.end();
      lying.assign(positions.size() * static_cast<size_t>(d), 0.0f);
      float* table = lying.data() + sequence.pooled() * d;
      stream.pool.decode({0, sequence.pooled()}, lying.data(), d);
      stream.coded.decode({front, coded}, table, d);
      const int exact = std::max(front, coded);
      stream.exact.decode({exact, stream.exact.end()}, table + (exact - front) * d, d);
      for (int i : order_of(positions)) rows = std::copy_n(lying.data() + i * d, out_d, rows);
      if (!staging_.pending()) continue;
      const RowsView fresh = staged_rows(side, b, head);
      for (int r = 0; r < fresh.rows; ++r) rows = std::copy_n(fresh.x + r * d, out_d, rows);
    }
  }
  round_to(shape_.input, out);
  return out;
}

KVCache::Fetched KVCache::Layer::fetch() const { return {max_rows(), dense(Side::key), dense(Side::value)}; }

// Columns: the rows that are stored, by rising position and padded with none, then those of the coming call.
Mask KVCache::Layer::make_mask(int tokens, bool return_array, int window) const {
  const int n = max_rows();
  bool ragged = false, dropped = false;
  for (int b = 0; b < batch(); ++b) {
    const Sequence& sequence = sequences_[static_cast<size_t>(b)];
    for (int head = 0; head < static_cast<int>(sequence.tables.size()); ++head) {
      ragged |= sequence.live(head) != n;
      dropped |= sequence.live(head) != sequence.consumed;
    }
  }
  Mask mask;
  if (tokens == 1 && window == 0 && !ragged) return mask;
  mask.kind = Mask::Kind::causal;
  if (!return_array && window == 0 && !ragged && !dropped) return mask;
  mask.kind = Mask::Kind::array;
  mask.batch = std::max(1, batch());
  mask.heads = batch() > 0 ? static_cast<int>(sequences_[0].tables.size()) : 1;
  mask.queries = tokens;
  mask.keys = n + tokens;
  mask.allowed.resize(static_cast<size_t>(mask.batch * mask.heads) * static_cast<size_t>(tokens) *
                      static_cast<size_t>(mask.keys));
  uint8_t* row = mask.allowed.data();
  for (int b = 0; b < mask.batch; ++b) {
    for (int head = 0; head < mask.heads; ++head) {
      const std::vector<int32_t> stored = batch() > 0 ? positions(b, head) : std::vector<int32_t>();
      const int consumed = batch() > 0 ? offset(b) : 0;
      for (int i = 0; i < tokens; ++i, row += mask.keys) {
        const int at = consumed + i, first = window > 0 ? at - window + 1 : 0;
        for (size_t c = 0; c < stored.size(); ++c) row[c] = stored[c] >= first;
        const int own = static_cast<int>(stored.size());
        std::fill(row + std::max(own, own + first - consumed), row + own + i + 1, uint8_t{1});
      }
    }
  }
  return mask;
}

}  // namespace veloxquant
