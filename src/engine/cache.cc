// The public face of a layer's cache: what settles and what does not.
#include "veloxquant/cache.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "core/check.h"
#include "engine/layer.h"
#include "kernels/instruction_set.h"
#include "veloxquant/codecs.h"
#include "veloxquant/errors.h"
#include "veloxquant/rope.h"

namespace veloxquant {
namespace {

DType store_type(const MethodSpec& method, DType input) {
  if (method.options.has_value("dtype")) {
    const std::string& name = method.options.choice("dtype");
    return name == "f16" ? DType::f16 : name == "bf16" ? DType::bf16 : DType::f32;
  }
  return input == DType::f32 ? DType::f16 : input;
}

// What a sequence may store; 0: no limit.
int fewest_rows(const Options& options) {
  int fewest = 0;
  for (std::string_view name : {"capacity", "fused_sdpa_max_ctx"}) {
    if (!options.has_value(name)) continue;
    const int most = options.integer(name);
    fewest = fewest == 0 ? most : std::min(fewest, most);
  }
  return fewest;
}

Arithmetic arithmetic(const MethodSpec& method) {
  const std::string& name = method.options.choice("attend_precision");
  return name == "float" ? Arithmetic::float32 : name == "fast" ? Arithmetic::int8 : Arithmetic::two_term;
}

// What the parts of a recipe need of each other.
void check_composition(const Recipe& recipe, const LayerShape& shape) {
  std::vector<std::string> problems;
  const Retention* retention = recipe.retention.get();
  for (Side side : kSides) {
    const Codec& codec = side == Side::key ? *recipe.key : *recipe.value;
    const int unit = codec.format().unit_rows;
    // The engine hands a codec whole units only.
    for (int rows = 0; rows <= 2 * unit * codec.format().units; ++rows) {
      if (recipe.placement->frontier(side, rows) % unit == 0) continue;
      problems.push_back(fmt::format("placement {} seals single rows, {} codec {} needs units of {}",
                                     recipe.placement->name(), to_string(side), codec.name(), unit));
      break;
    }
    if (retention && retention->when() == Retention::When::every_call && unit > 1) {
      problems.push_back(
          fmt::format("{} drops single rows at every call, {} codec {} seals units of {} rows: such rows "
                      "can't be taken out again",
                      retention->name(), to_string(side), codec.name(), unit));
    }
  }
  if (recipe.sink_pool && (retention || recipe.sink_window.window > 0 || recipe.sink_window.sinks > 0)) {
    problems.push_back(fmt::format("a pool of sinks needs all rows of a sequence, {} drops some",
                                   retention ? retention->name() : "sink_window"));
  }
  for (Side side : kSides) {
    const Codec& codec = side == Side::key ? *recipe.key : *recipe.value;
    if (const int rows = codec.fit_rows(); rows > 0 && recipe.placement->frontier(side, rows - 1) > 0) {
      problems.push_back(fmt::format("placement {} codes rows before there are {}, from which {} codec {} is fitted",
                                     recipe.placement->name(), rows, to_string(side), codec.name()));
    }
  }
  if (recipe.sink_window.cache_positions && !shape.rope) {
    problems.push_back("stream_positions: got cache, which needs the host's RoPE frequencies, and there are none");
  }
  for (std::string& problem : problems) problem = fmt::format("layer {}: {}", shape.layer, problem);
  if (!problems.empty()) throw QuantizerConfigError(problems);
}

// New rows can take the places of dropped ones where no row moves from one form to another.
bool replaces_rows(const Recipe& recipe) {
  constexpr int kMany = 1 << 20;
  if (!recipe.retention || recipe.retention->when() != Retention::When::every_call) return false;
  for (Side side : kSides) {
    const int frontier = recipe.placement->frontier(side, kMany);
    if (frontier != 0 && frontier != kMany) return false;
  }
  return true;
}

}  // namespace

KVCache::Layer::Layer(const MethodSpec& method, const LayerShape& shape, std::shared_ptr<Arena> arena)
    : method_(method), shape_(shape), store_(store_type(method_, shape.input)), arena_(std::move(arena)) {
  kernels::obey_environment();
  check_method(method_, shape_);
  capacity_ = fewest_rows(method_.options);
  fetches_ = !method_.options.boolean("fused_sdpa_memory_bound");
  if (method_.options.has_value("use_metal_kernels") && method_.options.boolean("use_metal_kernels") &&
      kernels::instruction_set() == "baseline") {
    throw QuantizerConfigError(
        fmt::format("layer {}: use_metal_kernels: got true, and vector kernels are not there", shape_.layer));
  }
  const auto seed = static_cast<uint64_t>(method_.options.integer64("seed")) + static_cast<uint64_t>(shape_.layer);
  recipe_ = build_recipe(method_, {shape_, store_, seed, arithmetic(method_)});
  store_ = recipe_.store.value_or(store_);
  check_composition(recipe_, shape_);
  trimmable_ = method_.def->capabilities.trimmable && (!method_.coding || method_.coding->def->capabilities.trimmable);
  replaces_rows_ = replaces_rows(recipe_);
  const int pool_rows =
      std::clamp(recipe_.sink_pool ? recipe_.sink_pool->capacity() : recipe_.sink_window.sinks, 1, kExactBlockRows);
  for (Side side : kSides) {
    exact_[static_cast<size_t>(side)] = raw_rows(store_, dim(side));
    staged_[static_cast<size_t>(side)] = raw_rows(DType::f32, dim(side));
    pooled_[static_cast<size_t>(side)] = raw_rows(store_, dim(side), pool_rows);
  }
  if (!arena_) arena_ = std::make_shared<Arena>();
}

KVCache::Layer::Layer(const Layer& settled)
    : method_(settled.method_),
      shape_(settled.shape_),
      store_(settled.store_),
      capacity_(settled.capacity_),
      fetches_(settled.fetches_),
      recipe_(settled.recipe_),
      trimmable_(settled.trimmable_),
      replaces_rows_(settled.replaces_rows_),
      arena_(settled.arena_),
      sequences_(settled.sequences_),
      commit_seconds_(settled.commit_seconds_),
      wanted_(settled.wanted_),
      counts_(settled.counts_) {
  VQ_CHECK(!settled.staging_.pending());
  shared_.late.store(settled.shared_.late.load(std::memory_order_relaxed), std::memory_order_relaxed);
  for (Side side : kSides) {
    exact_[static_cast<size_t>(side)] = settled.exact_[static_cast<size_t>(side)];
    staged_[static_cast<size_t>(side)] = settled.staged_[static_cast<size_t>(side)];
    pooled_[static_cast<size_t>(side)] = settled.pooled_[static_cast<size_t>(side)];
  }
}

int KVCache::Layer::staged(int batch_row) const {
  return staging_.pending() ? staging_.valid[static_cast<size_t>(batch_row)].size() : 0;
}

int KVCache::Layer::offset(int batch_row) const {
  return sequences_[static_cast<size_t>(batch_row)].consumed + staged(batch_row);
}

int KVCache::Layer::max_offset() const {
  int most = 0;
  for (int b = 0; b < batch(); ++b) most = std::max(most, offset(b));
  return most;
}

int KVCache::Layer::rows(int batch_row) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(batch_row)];
  int most = 0;
  for (int head = 0; head < static_cast<int>(sequence.tables.size()); ++head) {
    most = std::max(most, sequence.live(head));
  }
  return most + staged(batch_row);
}

int KVCache::Layer::max_rows() const {
  int most = 0;
  for (int b = 0; b < batch(); ++b) most = std::max(most, rows(b));
  return most;
}

void KVCache::Layer::reset() {
  staging_ = {};
  scoring_ = false;
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
      throw std::out_of_range(fmt::format("layer {}: batch row {} given, {} rows exist", shape_.layer, b, batch()));
    }
  }
  std::vector<Sequence> selected;
  selected.reserve(batch_rows.size());
  for (int b : batch_rows) selected.push_back(sequences_[static_cast<size_t>(b)]);
  sequences_ = std::move(selected);
  forget_call();
}

std::vector<std::string> KVCache::Layer::differences(const Layer& other) const {
  std::vector<std::string> lines;
  const auto compare = [&](std::string_view what, const auto& here, const auto& given) {
    if (here != given) lines.push_back(fmt::format("layer {}: {}: {} here, {} given", shape_.layer, what, here, given));
  };
  const LayerShape &a = shape_, &b = other.shape_;
  compare("layer", a.layer, b.layer);
  compare("kv_heads", a.kv_heads, b.kv_heads);
  compare("q_heads", a.q_heads, b.q_heads);
  compare("dim_k", a.dim_k, b.dim_k);
  compare("dim_v", a.dim_v, b.dim_v);
  compare("values in keys", a.value_is_key_prefix, b.value_is_key_prefix);
  compare("input type", to_string(a.input), to_string(b.input));
  compare("type of exact rows", to_string(store_), to_string(other.store_));
  if (a.rope != b.rope && !(a.rope && b.rope && *a.rope == *b.rope)) {
    lines.push_back(fmt::format("layer {}: another rotary embedding is given", shape_.layer));
  }
  const MethodSpec *mine = &method_, *theirs = &other.method_;
  for (; mine && theirs; mine = mine->coding.get(), theirs = theirs->coding.get()) {
    compare("method", mine->def->name, theirs->def->name);
    if (mine->def->name != theirs->def->name) return lines;
    for (const OptionSpec& option : mine->options.specs()) {
      const OptionValue &here = mine->options.value(option.name), &given = theirs->options.value(option.name);
      if (here != given) compare(option.name, to_string(here), to_string(given));
    }
  }
  if (mine || theirs) compare("method", method_.text, other.method_.text);
  return lines;
}

// Rows of another arena are copied into that of this cache, so that the other one can go.
void KVCache::Layer::join(const Layer& settled) {
  std::vector<Sequence> more;
  for (const Sequence& theirs : settled.sequences_) {
    Sequence& mine = more.emplace_back(new_sequence(theirs.seq));
    mine.consumed = theirs.consumed;
    mine.front = theirs.front;
    mine.pool = theirs.pool;
    mine.wanted = theirs.wanted;
    mine.tables = theirs.tables;
    for (size_t i = 0; i < mine.sides.size(); ++i) {
      StreamSide& stream = mine.sides[i];
      stream.fitted = theirs.sides[i].fitted;
      if (stream.fitted) stream.coded.use(*stream.fitted);
      stream.pool.share_rows(theirs.sides[i].pool);
      stream.coded.share_rows(theirs.sides[i].coded);
      stream.exact.share_rows(theirs.sides[i].exact);
    }
  }
  sequences_.reserve(sequences_.size() + more.size());
  std::ranges::move(more, std::back_inserter(sequences_));
  if (!sequences_.empty()) wanted_.clear();  // meant for the rows that a first call would have made
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
  const int64_t token = head * std::max(in.q.heads, 0);
  const int64_t rows = int64_t{std::max(in.q.batch, 0)} * std::max(in.q.tokens, 0);
  std::vector<float> out(static_cast<size_t>(rows * token));
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
  layer_->check_fetch();
  layer_->append(k, v, info);
  Fetched rows = layer_->fetch();
  if (layer_->commits_at_once()) layer_->commit();
  return rows;
}

KVCache::Fetched KVCache::update_and_fetch(const Tensor& k, const Tensor& v, const AttendIn& queries,
                                           const CallInfo& info) {
  layer_->check_fetch();
  layer_->check_step(queries, k, v, info);
  layer_->append(k, v, info);
  Fetched rows = layer_->fetch();
  if (k.tokens > 0) observe(queries);
  return rows;
}

void KVCache::observe(const AttendIn& in) {
  layer_->observe(in);
  layer_->commit();
}

std::vector<float> KVCache::decode(Side side) {
  layer_->check_fetch();
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
int KVCache::offset() const { return layer_->max_offset(); }
int KVCache::offset(int batch_row) const {
  if (batch_row < 0 || batch_row >= batch()) {
    throw std::out_of_range(fmt::format("offset: batch row {} given, {} rows exist", batch_row, batch()));
  }
  return layer_->offset(batch_row);
}
std::vector<int32_t> KVCache::positions(int batch_row, int head) {
  if (batch_row < 0 || batch_row >= batch() || head < 0 || head >= shape().kv_heads) {
    throw std::out_of_range(fmt::format("positions: batch row {}, head {} given, {} rows and {} heads exist", batch_row,
                                        head, batch(), shape().kv_heads));
  }
  commit();
  return layer_->positions(batch_row, head);
}
std::vector<float> KVCache::scores(int batch_row, int head) {
  (void)positions(batch_row, head);  // settles and checks
  return layer_->scores(batch_row, head);
}
std::vector<int32_t> KVCache::pool_positions(int batch_row) {
  if (batch_row < 0 || batch_row >= batch()) {
    throw std::out_of_range(fmt::format("pool_positions: batch row {} given, {} rows exist", batch_row, batch()));
  }
  commit();
  return layer_->pool_positions(batch_row);
}
void KVCache::want_sinks(int batch_row, std::span<const int32_t> positions) {
  layer_->want_sinks(batch_row, positions);
}
int KVCache::size() {
  commit();
  return layer_->max_rows();
}
bool KVCache::empty() const { return layer_->max_rows() == 0; }
bool KVCache::endless() const { return layer_->rotates_pool_queries(); }
bool KVCache::learns_from_rows() const {
  return layer_->coded(Side::key).fit_rows() > 0 || layer_->coded(Side::value).fit_rows() > 0;
}
float KVCache::largest_magnitude() const { return layer_->largest_magnitude(); }
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
KVCache KVCache::copy(std::span<const int> batch_rows) {
  KVCache selected = copy();
  selected.select(batch_rows);
  return selected;
}
void KVCache::join(KVCache&& other) {
  if (&other == this) throw std::invalid_argument("join: a cache can't be joined with itself");
  const std::vector<std::string> differences = layer_->differences(*other.layer_);
  if (!differences.empty()) throw QuantizerConfigError(differences);
  commit();
  other.commit();
  layer_->join(*other.layer_);
  other.reset();
}
KVCache KVCache::split(std::span<const int> batch_rows) {
  std::vector<int> rest;
  for (int b = 0; b < batch(); ++b) {
    const auto named = std::ranges::count(batch_rows, b);
    if (named > 1) throw std::invalid_argument(fmt::format("split: batch row {} is named twice", b));
    if (named == 0) rest.push_back(b);
  }
  KVCache apart = copy(batch_rows);
  select(rest);
  return apart;
}
bool KVCache::can_pop_front() const { return layer_->pops_front(); }
void KVCache::pop_front(int n) {
  if (n < 0) throw std::invalid_argument(fmt::format("pop_front: {} rows given, must not be negative", n));
  commit();
  layer_->pop_front(n);
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
