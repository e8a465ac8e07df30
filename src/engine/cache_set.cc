#include "veloxquant/cache_set.h"

#include <algorithm>

#include "core/arena.h"
#include "veloxquant/errors.h"

namespace veloxquant {

CacheSet::CacheSet(const MethodSpec& method, std::span<const LayerShape> layers) : arena_(std::make_shared<Arena>()) {
  std::vector<std::string> problems;
  for (const LayerShape& shape : layers) {
    try {
      layers_.emplace_back(method, shape, arena_);
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

int CacheSet::offset() const { return layers_.empty() ? 0 : layers_.front().offset(); }

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
