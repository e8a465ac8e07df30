// The door: everything that could be wrong with a call is found before anything changes; then its rows are staged.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/check.h"
#include "engine/layer.h"
#include "kernels/kernels.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

void check_side(const Tensor& t, Side side, int heads, int dim, int batch, int tokens, int layer) {
  if (t.heads == heads && t.dim == dim && t.batch == batch && t.tokens == tokens && (t.data || tokens == 0)) return;
  throw ShapeError(fmt::format(
      "layer {}: {} tensor is [batch {}][tokens {}][heads {}][dim {}]{}, expected [{}][{}][{}][{}]", layer,
      to_string(side), t.batch, t.tokens, t.heads, t.dim, t.data ? "" : " without data", batch, tokens, heads, dim));
}

/// False when a magnitude is beyond `limit` or not a number; the rows are then converted up to it.
bool convert_rows(const Tensor& t, int b, int head, Range tokens, float limit, float* out) {
  const size_t element = size_of(t.dtype);
  for (int i = tokens.begin; i < tokens.end; ++i, out += t.dim) {
    const int64_t at = b * t.stride_batch + i * t.stride_token + head * t.stride_head;
    kernels::to_f32(static_cast<const std::byte*>(t.data) + at * static_cast<int64_t>(element), t.dim, t.dtype, out);
    if (!kernels::within(out, t.dim, limit)) return false;  // while the row is near
  }
  return true;
}

[[noreturn]] void throw_value(const float* rows, int dim, float limit, Side side, int layer, int b, int head, int pos) {
  int64_t i = 0;
  while (std::fabs(rows[i]) <= limit) ++i;
  const float value = rows[i];
  const std::string where = fmt::format("layer {}: {} of batch row {}, head {}, position {}, channel {} is {}", layer,
                                        to_string(side), b, head, pos + i / dim, i % dim, value);
  if (std::isfinite(value)) {
    throw ValueError(
        fmt::format("{}; magnitudes up to {} can be stored with this element type (option dtype)", where, limit));
  }
  throw ValueError(where + "; only finite numbers can be stored");
}

}  // namespace

// More would become an infinity on rounding, or, where the type could hold it, in the range of a group or in a dot
// product.
float KVCache::Layer::largest_magnitude() const { return store_ == DType::f16 ? 65519.996f : 0x1p125f; }

void KVCache::Layer::check_append(const Tensor& k, const Tensor& v, const CallInfo& info) const {
  if (k.batch < 1 || k.tokens < 0) {
    throw ShapeError(fmt::format("layer {}: a call of batch {} and {} tokens", shape_.layer, k.batch, k.tokens));
  }
  const int expected = sequences_.empty() ? k.batch : batch();
  check_side(k, Side::key, shape_.kv_heads, shape_.dim_k, expected, k.tokens, shape_.layer);
  if (!shape_.value_is_key_prefix)
    check_side(v, Side::value, shape_.kv_heads, shape_.dim_v, expected, k.tokens, shape_.layer);
  if (!info.valid.empty() && info.valid.size() != static_cast<size_t>(expected)) {
    throw ShapeError(
        fmt::format("layer {}: {} valid ranges for {} batch rows", shape_.layer, info.valid.size(), expected));
  }
  for (int b = 0; b < expected; ++b) {
    const Range valid = info.valid.empty() ? Range{0, k.tokens} : info.valid[static_cast<size_t>(b)];
    if (valid.begin < 0 || valid.end > k.tokens || valid.begin > valid.end) {
      throw ShapeError(fmt::format("layer {}: valid range {}..{} of batch row {} in a call of {} tokens", shape_.layer,
                                   valid.begin, valid.end, b, k.tokens));
    }
    const int64_t rows = int64_t{sequences_.empty() ? 0 : this->rows(b)} + valid.size();
    const int64_t limit = capacity_ ? capacity_ : std::numeric_limits<int32_t>::max();
    if (rows > limit) {
      throw CapacityError(fmt::format("layer {}: the call would store {} rows in batch row {}, capacity is {}",
                                      shape_.layer, rows, b, limit));
    }
  }
}

void KVCache::Layer::append(const Tensor& k, const Tensor& v, const CallInfo& info) {
  check_append(k, v, info);
  if (k.tokens == 0) return;
  Staging fresh;
  fresh.tokens = k.tokens;
  fresh.phase = resolve(info.phase, k.tokens);
  fresh.valid.assign(info.valid.begin(), info.valid.end());
  if (fresh.valid.empty()) fresh.valid.assign(static_cast<size_t>(k.batch), Range{0, k.tokens});
  for (Side side : sides()) {
    const Tensor& t = side == Side::key ? k : v;
    const auto s = static_cast<size_t>(side);
    const float limit = largest_magnitude();
    const size_t head_floats = static_cast<size_t>(t.tokens) * static_cast<size_t>(t.dim);
    fresh.floats[s] = head_floats * static_cast<size_t>(t.batch * t.heads);
    fresh.rows[s] = std::make_unique_for_overwrite<float[]>(fresh.floats[s]);
    for (int b = 0; b < t.batch; ++b) {
      const Range valid = fresh.valid[static_cast<size_t>(b)];
      for (int head = 0; head < t.heads; ++head) {
        float* rows = fresh.rows[s].get() + static_cast<size_t>(b * t.heads + head) * head_floats;
        if (convert_rows(t, b, head, valid, limit, rows)) continue;
        throw_value(rows, t.dim, limit, side, shape_.layer, b, head, sequences_.empty() ? 0 : offset(b));
      }
    }
  }
  commit();
  if (sequences_.empty()) {
    for (int b = 0; b < k.batch; ++b) {
      sequences_.push_back(new_sequence(static_cast<uint32_t>(b)));
      if (const auto wanted = wanted_.find(b); wanted != wanted_.end()) sequences_.back().wanted = wanted->second;
    }
    wanted_.clear();
  }
  call_tokens_ = fresh.tokens;
  call_valid_ = fresh.valid;
  staging_ = std::move(fresh);
  scoring_ = needs_masses();
  shared_.scored = false;
  reserve_call();
}

bool KVCache::Layer::needs_masses() const {
  if (!recipe_.retention || !scorer().wants_mass(staging_.phase)) return false;
  if (!scorer().only_for_selection()) return true;
  for (int b = 0; b < batch(); ++b) {
    if (rows(b) > recipe_.retention->budget()) return true;
  }
  return false;
}

RowsView KVCache::Layer::staged_rows(Side side, int batch_row, int head) const {
  const int d = dim(home(side));
  const auto index = static_cast<size_t>(batch_row * shape_.kv_heads + head);
  const float* rows = staging_.rows[static_cast<size_t>(home(side))].get() +
                      index * static_cast<size_t>(staging_.tokens) * static_cast<size_t>(d);
  return {rows, d, staging_.valid[static_cast<size_t>(batch_row)].size(), d};
}

Sequence KVCache::Layer::new_sequence(uint32_t seq) const {
  Sequence sequence;
  sequence.seq = seq;
  const Retention* retention = recipe_.retention.get();
  const int tables = retention && !retention->shared_by_heads() ? shape_.kv_heads : 1;
  const int base = recipe_.sink_pool ? 0 : recipe_.sink_window.sinks;
  for (int t = 0; t < tables; ++t) sequence.tables.emplace_back(base, retention != nullptr);
  for (int head = 0; head < shape_.kv_heads; ++head) {
    for (Side side : kSides) {
      sequence.sides.push_back({BlockList(&pooled(side), arena_.get()),
                                BlockList(&coded(side), arena_.get(), replaces_rows_),
                                BlockList(&exact(side), arena_.get(), replaces_rows_)});
    }
  }
  return sequence;
}

}  // namespace veloxquant
