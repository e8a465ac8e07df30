// The public face of a layer's cache: what settles and what does not.
#include "veloxquant/cache.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/check.h"
#include "engine/layer.h"
#include "kernels/instruction_set.h"
#include "veloxquant/codecs.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

DType store_type(const MethodSpec& method, DType input) {
  if (method.options.has_value("dtype")) {
    const std::string& name = method.options.choice("dtype");
    return name == "f16" ? DType::f16 : name == "bf16" ? DType::bf16 : DType::f32;
  }
  return input == DType::f32 ? DType::f16 : input;
}

Arithmetic arithmetic(const MethodSpec& method) {
  const std::string& name = method.options.choice("attend_precision");
  return name == "float" ? Arithmetic::float32 : name == "fast" ? Arithmetic::int8 : Arithmetic::two_term;
}

// The engine hands a codec whole units only: a placement that would seal parts of one cannot carry it.
void check_composition(const Recipe& recipe, int layer) {
  std::vector<std::string> problems;
  for (Side side : kSides) {
    const Codec& codec = side == Side::key ? *recipe.key : *recipe.value;
    const int unit = codec.format().unit_rows;
    for (int rows = 0; rows <= 2 * unit * codec.format().units; ++rows) {
      if (recipe.placement->frontier(side, rows) % unit == 0) continue;
      problems.push_back(fmt::format("layer {}: placement {} seals single rows, {} codec {} needs units of {}", layer,
                                     recipe.placement->name(), to_string(side), codec.name(), unit));
      break;
    }
  }
  if (!problems.empty()) throw QuantizerConfigError(problems);
}

}  // namespace

KVCache::Layer::Layer(const MethodSpec& method, const LayerShape& shape, std::shared_ptr<Arena> arena)
    : method_(method), shape_(shape), store_(store_type(method_, shape.input)), arena_(std::move(arena)) {
  kernels::obey_environment();
  check_method(method_, shape_);
  capacity_ = method_.options.has_value("capacity") ? method_.options.integer("capacity") : 0;
  const auto seed = static_cast<uint64_t>(method_.options.integer64("seed")) + static_cast<uint64_t>(shape_.layer);
  recipe_ = method_.def->build(method_.options, {shape_, store_, seed, arithmetic(method_)});
  check_composition(recipe_, shape_.layer);
  for (Side side : kSides) {
    exact_[static_cast<size_t>(side)] = raw_rows(store_, dim(side));
    staged_[static_cast<size_t>(side)] = raw_rows(DType::f32, dim(side));
  }
  if (!arena_) arena_ = std::make_shared<Arena>();
}

KVCache::Layer::Layer(const Layer& settled)
    : method_(settled.method_),
      shape_(settled.shape_),
      store_(settled.store_),
      capacity_(settled.capacity_),
      recipe_(settled.recipe_),
      arena_(settled.arena_),
      sequences_(settled.sequences_) {
  VQ_CHECK(!settled.staging_.pending());
  for (Side side : kSides) {
    exact_[static_cast<size_t>(side)] = settled.exact_[static_cast<size_t>(side)];
    staged_[static_cast<size_t>(side)] = settled.staged_[static_cast<size_t>(side)];
  }
}

int KVCache::Layer::rows(int batch_row) const {
  const auto b = static_cast<size_t>(batch_row);
  return sequences_[b].rows + (staging_.pending() ? staging_.valid[b].size() : 0);
}

int KVCache::Layer::max_rows() const {
  int most = 0;
  for (int b = 0; b < batch(); ++b) most = std::max(most, rows(b));
  return most;
}

void KVCache::Layer::reset() {
  staging_ = {};
  commit();
  sequences_.clear();
  forget_call();
}

// Queries may be padding only where they belong to the newest call.
void KVCache::Layer::forget_call() {
  call_tokens_ = 0;
  call_valid_.clear();
}

void KVCache::Layer::select(std::span<const int> batch_rows) {
  for (int b : batch_rows) {
    if (b < 0 || b >= batch()) {
      throw std::out_of_range(fmt::format("select: batch row {} given, rows 0..{} exist", b, batch() - 1));
    }
  }
  std::vector<Sequence> selected;
  selected.reserve(batch_rows.size());
  for (int b : batch_rows) selected.push_back(sequences_[static_cast<size_t>(b)]);
  sequences_ = std::move(selected);
  forget_call();
}

KVCache::KVCache(const MethodSpec& method, const LayerShape& shape, std::shared_ptr<Arena> arena)
    : layer_(std::make_unique<Layer>(method, shape, std::move(arena))) {}
KVCache::KVCache(std::unique_ptr<Layer> layer) : layer_(std::move(layer)) {}
KVCache::~KVCache() = default;
KVCache::KVCache(KVCache&&) noexcept = default;
KVCache& KVCache::operator=(KVCache&&) noexcept = default;

void KVCache::append(const Tensor& k, const Tensor& v, const CallInfo& info) { layer_->append(k, v, info); }
void KVCache::attend(const AttendIn& in, const AttendOut& out, int ith, int nth) const {
  layer_->attend(in, out, ith, nth);
}
void KVCache::commit() { layer_->commit(); }

std::vector<float> KVCache::attend(const AttendIn& in) {
  const int64_t head = layer_->shape().dim_v;
  const int64_t token = head * layer_->shape().q_heads;
  std::vector<float> out(static_cast<size_t>(in.q.batch) * static_cast<size_t>(in.q.tokens * token));
  layer_->attend(in, {out.data(), token * in.q.tokens, token, head}, 0, 1);
  layer_->commit();
  return out;
}

std::vector<float> KVCache::step(const AttendIn& in, const Tensor& k, const Tensor& v, const CallInfo& info) {
  layer_->check_step(in, k, v, info);
  layer_->append(k, v, info);
  return attend(in);
}

KVCache::Fetched KVCache::update_and_fetch(const Tensor& k, const Tensor& v, const CallInfo& info) {
  layer_->append(k, v, info);
  return layer_->fetch();
}

std::vector<float> KVCache::decode(Side side) {
  commit();
  return layer_->dense(side);
}

Mask KVCache::make_mask(int tokens, bool return_array, int window) {
  if (tokens < 0 || window < 0) {
    throw std::invalid_argument(fmt::format("make_mask: tokens {} and window {} must not be negative", tokens, window));
  }
  commit();
  return layer_->make_mask(tokens, return_array, window);
}

int KVCache::batch() const { return layer_->batch(); }
int KVCache::offset() const { return layer_->max_rows(); }
int KVCache::offset(int batch_row) const {
  if (batch_row < 0 || batch_row >= batch()) {
    throw std::out_of_range(fmt::format("offset: batch row {} given, {} rows exist", batch_row, batch()));
  }
  return layer_->rows(batch_row);
}
int KVCache::size() {
  commit();
  return layer_->max_rows();
}
bool KVCache::empty() const { return layer_->max_rows() == 0; }
bool KVCache::is_trimmable() const { return layer_->trimmable(); }
int KVCache::trim(int n) {
  if (n < 0) throw std::invalid_argument(fmt::format("trim: {} rows given, must not be negative", n));
  commit();
  return layer_->trim(n);
}
void KVCache::select(std::span<const int> batch_rows) {
  commit();
  layer_->select(batch_rows);
}
KVCache KVCache::copy() {
  commit();
  return KVCache(std::make_unique<Layer>(*layer_));
}
void KVCache::reset() { layer_->reset(); }

size_t KVCache::nbytes() {
  commit();
  return layer_->stats().nbytes;
}
size_t KVCache::used_bytes() {
  commit();
  return layer_->stats().used_bytes;
}
CacheStats KVCache::peek() const { return layer_->stats(); }

double KVCache::commit_seconds() const { return layer_->commit_seconds(); }

std::vector<std::byte> KVCache::state() {
  commit();
  return layer_->state();
}
void KVCache::set_state(std::span<const std::byte> bytes) { layer_->set_state(bytes); }

const LayerShape& KVCache::shape() const { return layer_->shape(); }
const MethodSpec& KVCache::method() const { return layer_->method(); }

}  // namespace veloxquant
