#include "veloxquant/cache_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "core/arena.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

static_assert(std::endian::native == std::endian::little, "stored numbers are little-endian");
constexpr char kMagic[8] = {'V', 'Q', 'L', 'A', 'Y', 'E', 'R', 'S'};
constexpr uint32_t kVersion = 1;

}  // namespace

CacheSet::CacheSet(const MethodSpec& method, std::span<const LayerShape> layers)
    : CacheSet(std::vector<MethodSpec>(layers.size(), method), layers) {}

CacheSet::CacheSet(std::span<const MethodSpec> methods, std::span<const LayerShape> layers)
    : arena_(std::make_shared<Arena>()) {
  if (methods.size() != layers.size()) {
    throw QuantizerConfigError(fmt::format("methods: got {}, must be {}, one a layer", methods.size(), layers.size()));
  }
  std::vector<std::string> problems;
  for (size_t i = 0; i < layers.size(); ++i) {
    try {
      layers_.emplace_back(methods[i], layers[i], arena_);
    } catch (const QuantizerConfigError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  }
  if (!problems.empty()) throw QuantizerConfigError(problems);
}

void CacheSet::commit() {
  for (KVCache& layer : layers_) layer.commit();
}

int CacheSet::trim(int n) {
  commit();
  for (const KVCache& layer : layers_) {
    if (!layer.is_trimmable()) return 0;
    for (int b = 0; b < layer.batch(); ++b) {
      if (layer.offset(b) < n) return 0;
    }
  }
  int removed = 0;
  for (KVCache& layer : layers_) removed = std::max(removed, layer.trim(n));
  return removed;
}

void CacheSet::reset() {
  for (KVCache& layer : layers_) layer.reset();
}

bool CacheSet::is_trimmable() const {
  return std::ranges::all_of(layers_, [](const KVCache& layer) { return layer.is_trimmable(); });
}

Mask CacheSet::make_mask(int tokens, bool return_array, int window, int layer) {
  if (layer < 0 || layer >= layers()) {
    throw std::out_of_range(fmt::format("make_mask: layer {} given, {} layers exist", layer, layers()));
  }
  return layers_[static_cast<size_t>(layer)].make_mask(tokens, return_array, window);
}

int CacheSet::batch() const { return layers_.empty() ? 0 : layers_.front().batch(); }
int CacheSet::offset() const { return layers_.empty() ? 0 : layers_.front().offset(); }
int CacheSet::offset(int batch_row) const {
  if (layers_.empty()) throw std::out_of_range(fmt::format("offset: batch row {} given, no layer exists", batch_row));
  return layers_.front().offset(batch_row);
}
int CacheSet::size() {
  int rows = 0;
  for (KVCache& layer : layers_) rows = std::max(rows, layer.size());
  return rows;
}
bool CacheSet::empty() const {
  return std::ranges::all_of(layers_, [](const KVCache& layer) { return layer.empty(); });
}

// Layers that hold nothing, as those without attention, have no batch rows and take no part; one that does take part
// refuses rows it has not.
bool CacheSet::takes_part(const KVCache& layer) const { return layer.batch() > 0 || empty(); }

void CacheSet::select(std::span<const int> batch_rows) {
  CacheSet selected = copy(batch_rows);
  layers_ = std::move(selected.layers_);
}

CacheSet CacheSet::copy() {
  std::vector<KVCache> copies;
  for (KVCache& layer : layers_) copies.push_back(layer.copy());
  return {arena_, std::move(copies)};
}

CacheSet CacheSet::copy(std::span<const int> batch_rows) {
  std::vector<KVCache> copies;
  for (KVCache& layer : layers_) copies.push_back(takes_part(layer) ? layer.copy(batch_rows) : layer.copy());
  return {arena_, std::move(copies)};
}

CacheSet CacheSet::split(std::span<const int> batch_rows) {
  std::vector<KVCache> apart, rest;
  for (KVCache& layer : layers_) {
    rest.push_back(layer.copy());
    apart.push_back(takes_part(layer) ? rest.back().split(batch_rows) : layer.copy());
  }
  layers_ = std::move(rest);
  return {arena_, std::move(apart)};
}

// A batch row is the same one in all layers that hold any.
void CacheSet::check_rows_agree(const CacheSet& other) const {
  int expected = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int rows = layers_[i].batch() + other.layers_[i].batch();
    if (rows == 0) continue;
    if (expected == 0) expected = rows;
    if (rows != expected) {
      throw UnsupportedOperation(
          fmt::format("join: layer {} would hold {} batch rows, those before it {}", i, rows, expected));
    }
  }
}

void CacheSet::join(CacheSet&& other) {
  if (&other == this) throw std::invalid_argument("join: a set can't be joined with itself");
  if (other.layers() != layers()) {
    throw QuantizerConfigError(fmt::format("layers: {} here, {} given", layers(), other.layers()));
  }
  check_rows_agree(other);
  std::vector<KVCache> joined;
  for (size_t i = 0; i < layers_.size(); ++i) {
    joined.push_back(layers_[i].copy());
    joined.back().join(other.layers_[i].copy());
  }
  layers_ = std::move(joined);
  other.reset();
}

// "VQLAYERS" | u32 version | u32 layers | for each: u64 bytes | its state
std::vector<std::byte> CacheSet::state() {
  std::vector<std::byte> out;
  const auto put = [&out](const void* data, size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    out.insert(out.end(), begin, begin + bytes);
  };
  const auto count = static_cast<uint32_t>(layers_.size());
  put(kMagic, sizeof kMagic);
  put(&kVersion, sizeof kVersion);
  put(&count, sizeof count);
  for (KVCache& layer : layers_) {
    const std::vector<std::byte> state = layer.state();
    const uint64_t bytes = state.size();
    put(&bytes, sizeof bytes);
    put(state.data(), state.size());
  }
  return out;
}

void CacheSet::set_state(std::span<const std::byte> bytes) {
  const auto take = [&bytes](size_t count) {
    if (count > bytes.size()) {
      throw FormatError(fmt::format("state of layers ends early: {} bytes left, {} needed", bytes.size(), count));
    }
    const std::span<const std::byte> taken = bytes.first(count);
    bytes = bytes.subspan(count);
    return taken;
  };
  const auto number = [&]<class T>(T value) {
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  };
  if (std::memcmp(take(sizeof kMagic).data(), kMagic, sizeof kMagic) != 0) {
    throw FormatError("not the state of a cache set: it has another magic");
  }
  if (const uint32_t version = number(uint32_t{}); version != kVersion) {
    throw FormatError(fmt::format("state of layers has version {}, this library reads {}", version, kVersion));
  }
  if (const uint32_t count = number(uint32_t{}); count != layers_.size()) {
    throw FormatError(fmt::format("state has {} layers, this set has {}", count, layers_.size()));
  }
  // Read twice: what is wrong with one layer must leave all of them as they are, and a call that waits unsettled.
  std::vector<std::span<const std::byte>> states;
  for (const KVCache& layer : layers_) {
    states.push_back(take(number(uint64_t{})));
    KVCache(layer.method(), layer.shape()).set_state(states.back());
  }
  if (!bytes.empty()) throw FormatError(fmt::format("state of layers has {} bytes too many", bytes.size()));
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].set_state(states[i]);
}

size_t CacheSet::nbytes() {
  size_t bytes = 0;
  for (KVCache& layer : layers_) bytes += layer.nbytes();
  return bytes;
}

size_t CacheSet::used_bytes() {
  size_t bytes = 0;
  for (KVCache& layer : layers_) bytes += layer.used_bytes();
  return bytes;
}

size_t CacheSet::staging_bytes() const {
  size_t bytes = 0;
  for (const KVCache& layer : layers_) bytes += layer.peek().staging_bytes;
  return bytes;
}

double CacheSet::commit_seconds() const {
  double seconds = 0;
  for (const KVCache& layer : layers_) seconds += layer.commit_seconds();
  return seconds;
}

ArenaStats CacheSet::arena() const { return arena_->stats(); }

}  // namespace veloxquant
