#include "hosts/llama/hook.h"

#include <fmt/format.h>
#include <ggml-backend.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace veloxquant::llama {
namespace {

constexpr std::string_view kMaskInput = "attn_inp_kq_mask";
constexpr int kSparseRowsParameter = 4;  // of FLASH_ATTN_EXT: ints from 0

/// The tensor that `tensor` is a view or a copy of.
const ggml_tensor& root_of(const ggml_tensor& tensor) {
  const ggml_tensor* t = &tensor;
  for (;;) {
    const bool moves = t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE ||
                       t->op == GGML_OP_TRANSPOSE || t->op == GGML_OP_CPY || t->op == GGML_OP_CONT;
    if (t->view_src) {
      t = t->view_src;
    } else if (moves && t->src[0]) {
      t = t->src[0];
    } else {
      return *t;
    }
  }
}

std::string name_of(const ggml_tensor& tensor) { return ggml_get_name(&tensor); }

int int_parameter(const ggml_tensor& node, int index) { return node.op_params[index]; }

float float_parameter(const ggml_tensor& node, int index) {
  float value;
  std::memcpy(&value, &node.op_params[index], sizeof value);
  return value;
}

int64_t floats(size_t bytes) { return static_cast<int64_t>(bytes / sizeof(float)); }

/// Where in its root a view begins, in bytes.
size_t offset_in_root(const ggml_tensor& tensor) {
  const ggml_tensor* t = &tensor;
  while (!t->view_src && t->src[0] && (t->op == GGML_OP_CONT || t->op == GGML_OP_CPY)) t = t->src[0];
  return t->view_src ? t->view_offs : 0;
}

/// Whether the last query sees each of the first cells.
std::vector<uint8_t> visible_cells(const ggml_tensor& mask, int queries) {
  constexpr int64_t kCells = std::tuple_size_v<decltype(probe_positions(1))>;
  std::vector<uint8_t> visible;
  if (mask.type != GGML_TYPE_F32 && mask.type != GGML_TYPE_F16) return visible;
  const char* row = static_cast<const char*>(mask.data) + static_cast<size_t>(queries - 1) * mask.nb[1];
  for (int64_t i = 0; i < std::min(kCells, mask.ne[0]); ++i) {
    const float value = mask.type == GGML_TYPE_F32 ? reinterpret_cast<const float*>(row)[i]
                                                   : ggml_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t*>(row)[i]);
    visible.push_back(std::isfinite(value));  // with ALiBi it is a distance
  }
  return visible;
}

/// What both forms of attention have.
AttentionFacts describe(const ggml_tensor& q, const ggml_tensor& k, const ggml_tensor& v, const ggml_tensor* mask,
                        const ggml_tensor* sinks) {
  const ggml_tensor &key_root = root_of(k), &value_root = root_of(v);
  AttentionFacts facts;
  facts.key_cache = name_of(key_root);
  facts.value_cache = name_of(value_root);
  facts.f32 = q.type == GGML_TYPE_F32 && q.nb[0] == sizeof(float) && (!sinks || sinks->type == GGML_TYPE_F32);
  facts.on_host = key_root.buffer && ggml_backend_buffer_is_host(key_root.buffer);
  facts.streams = static_cast<int>(q.ne[3]);
  facts.sinks = sinks != nullptr;
  facts.values_at_key_start = offset_in_root(k) == offset_in_root(v);
  facts.q_heads = static_cast<int>(q.ne[2]);
  facts.key_heads = static_cast<int>(k.ne[2]);
  facts.value_heads = static_cast<int>(v.ne[2]);
  facts.dim_k = static_cast<int>(k.ne[0]);
  const ggml_tensor* mask_root = mask ? &root_of(*mask) : nullptr;
  facts.mask_is_input = mask_root && mask_root->op == GGML_OP_NONE && name_of(*mask_root).starts_with(kMaskInput);
  if (facts.mask_is_input && mask_root->data) {
    facts.visible = visible_cells(*mask_root, static_cast<int>(q.ne[1]));
  }
  return facts;
}

AttentionFacts describe_fused(const ggml_tensor& node) {
  AttentionFacts facts = describe(*node.src[0], *node.src[1], *node.src[2], node.src[3], node.src[4]);
  facts.f32 = facts.f32 && node.type == GGML_TYPE_F32;
  facts.sparse_rows = node.op_params[kSparseRowsParameter];
  facts.scale = float_parameter(node, 0);
  facts.max_bias = float_parameter(node, 1);
  facts.softcap = float_parameter(node, 2);
  facts.dim_v = static_cast<int>(node.src[2]->ne[0]);
  return facts;
}

}  // namespace

struct Hook::Products {
  ggml_tensor* first;
  const ggml_tensor* softmax;
  AttentionFacts facts;
};

Hook::Hook(const std::atomic<bool>* cancel)
    : cancel_(cancel), scratch_(ggml_init({2 * ggml_tensor_overhead(), nullptr, true}), ggml_free) {}

Hook::~Hook() = default;

template <class Work>
void Hook::guard(Work&& work) noexcept {
  try {
    work();
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("an exception of unknown type");
  }
}

bool Hook::on_node(ggml_tensor* node, bool ask, void* hook) noexcept {
  Hook& self = *static_cast<Hook*>(hook);
  if (ask && self.facts_) self.guard([&] { self.note_states(*node); });
  // In a reused graph a node is a custom op already.
  if (ask && node->op == GGML_OP_SET_ROWS) self.guard([&] { self.rewrite_write(*node); });
  if (ask && node->op == GGML_OP_FLASH_ATTN_EXT) self.guard([&] { self.rewrite_attention(*node); });
  if (ask && node->op == GGML_OP_MUL_MAT) self.guard([&] { self.rewrite_products(*node); });
  return !ask;  // ask: nothing needs to be seen, so the whole graph is computed in one go
}

bool Hook::on_abort(void* hook) noexcept {
  const Hook& self = *static_cast<const Hook*>(hook);
  return self.failed_ || self.cancelled();
}

void Hook::arm(std::vector<HookPart> parts, GraphFacts* facts) {
  parts_ = std::move(parts);
  facts_ = facts;
  keys_layer_ = -1;
  message_.clear();
  failed_ = false;
}

void Hook::disarm() {
  parts_.clear();
  facts_ = nullptr;
}

std::string Hook::message() const {
  const std::lock_guard lock(mutex_);
  return message_;
}

void Hook::fail(const char* message) noexcept {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  try {
    message_ = message;
  } catch (...) {  // no memory for the text: the failure itself is what counts
  }
  failed_ = true;
}

void Hook::rewrite_write(ggml_tensor& node) {
  const std::string name = name_of(root_of(node));
  const std::optional<CacheName> cache = parse_cache_name(name);
  // Other writes exist that are no caches: chosen experts, samplers.
  if (facts_ && (cache || is_foreign_cache(name))) facts_->writes.push_back(name);
  if (!cache) return;
  const ggml_tensor& rows = *node.src[0];
  if (rows.type != GGML_TYPE_F32 || rows.nb[0] != sizeof(float)) {
    throw std::runtime_error(fmt::format("rows for {} are not f32", name));
  }
  if (facts_ && cache->side == Side::key) note_rotation(cache->layer, rows);
  Node& written = record(node);
  written.layer = cache->layer;
  written.side = cache->side;
  make_custom(node, &Hook::run_write, 1, written);
}

void Hook::note_states(const ggml_tensor& node) {
  for (const ggml_tensor* source : node.src) {
    if (!source) continue;
    const std::string name = name_of(root_of(*source));
    if (parse_state_name(name)) facts_->states.insert(name);
  }
}

// The ROPE node that made the rows, if nothing but views lies between.
void Hook::note_rotation(int layer, const ggml_tensor& rows) {
  const ggml_tensor* node = &rows;
  while (node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_PERMUTE ||
         node->op == GGML_OP_CONT) {
    node = node->src[0];
    if (!node) return;
  }
  if (node->op != GGML_OP_ROPE) return;
  RopeFacts& rope = facts_->ropes[layer];
  rope.rotary_dim = int_parameter(*node, 1);
  rope.mode = int_parameter(*node, 2);
  rope.original_context = int_parameter(*node, 4);
  rope.base = float_parameter(*node, 5);
  rope.frequency_scale = float_parameter(*node, 6);
  rope.extrapolation = float_parameter(*node, 7);
  rope.beta_fast = float_parameter(*node, 9);
  rope.beta_slow = float_parameter(*node, 10);
  const ggml_tensor* factors = node->src[2];
  if (!factors) return;
  rope.factors.resize(static_cast<size_t>(ggml_nelements(factors)));
  if (factors->type == GGML_TYPE_F32 && factors->data) {
    std::memcpy(rope.factors.data(), factors->data, rope.factors.size() * sizeof(float));
  } else {
    facts_->ropes.erase(layer);
  }
}

bool Hook::take_facts(const AttentionFacts& facts) {
  const std::optional<CacheName> key = parse_cache_name(facts.key_cache);
  if (facts_) {
    facts_->attention.push_back(facts);
    if (!key) return false;
  }
  if (const auto refusal = refuse_attention(facts)) throw std::runtime_error("the model can't be served: " + *refusal);
  if (facts.key_cache == facts.value_cache) latent_[key->layer] = facts.dim_v;
  return true;
}

void Hook::rewrite_attention(ggml_tensor& node) {
  const AttentionFacts facts = describe_fused(node);
  if (!take_facts(facts)) return;
  Node& attention = record(node, facts);
  attention.sinks = node.src[4];
  make_custom(node, &Hook::run_attention, GGML_N_TASKS_MAX, attention);
}

std::optional<Hook::Products> Hook::find_products(ggml_tensor& node) {
  const ggml_tensor* softmax = node.src[1];
  if (!softmax || softmax->op != GGML_OP_SOFT_MAX) return std::nullopt;
  float inner = 1, outer = float_parameter(*softmax, 0);  // outer * tanh(inner * q.k), or outer * q.k
  bool capped = false, biased = false;
  ggml_tensor* x = softmax->src[0];
  for (; x && x->op != GGML_OP_MUL_MAT; x = x->src[0]) {
    if (x->op == GGML_OP_SCALE && float_parameter(*x, 1) == 0) {
      (capped ? inner : outer) *= float_parameter(*x, 0);
    } else if (x->op == GGML_OP_UNARY && ggml_get_unary_op(x) == GGML_UNARY_OP_TANH && !capped) {
      capped = true;
    } else if (x->op == GGML_OP_ADD) {
      biased = true;
    } else {
      return std::nullopt;
    }
  }
  // Other softmaxes have products around them, too.
  if (!x || !parse_cache_name(name_of(root_of(*x->src[0])))) return std::nullopt;
  Products products{x, softmax, describe(*x->src[1], *x->src[0], *node.src[0], softmax->src[1], softmax->src[2])};
  AttentionFacts& facts = products.facts;
  facts.fused = false;
  facts.bias = biased;
  facts.f32 = facts.f32 && node.type == GGML_TYPE_F32;
  facts.scale = capped ? inner * outer : outer;
  facts.softcap = capped ? outer : 0;
  facts.max_bias = float_parameter(*softmax, 1);
  facts.dim_v = static_cast<int>(node.ne[0]);
  return products;
}

void Hook::rewrite_products(ggml_tensor& node) {
  const std::optional<Products> products = find_products(node);
  if (!products || !take_facts(products->facts)) return;
  // Nothing of the graph is computed yet: nodes shown earlier can still be rewritten.
  Node& first = record(*products->first, products->facts);
  first.sinks = products->softmax->src[2];
  first.q_heads = products->facts.q_heads;
  first.dim_v = products->facts.dim_v;
  first.attended.resize(static_cast<size_t>(ggml_nelements(&node)));
  make_custom(*products->first, &Hook::run_first_product, GGML_N_TASKS_MAX, first);
  Node& second = record(node);
  second.first = &first;
  make_custom(node, &Hook::run_second_product, 1, second);
}

Hook::Node& Hook::record(const ggml_tensor& node) {
  std::unique_ptr<Node>& slot = nodes_[&node];  // a rebuilt graph reuses the addresses of nodes
  if (!slot) slot = std::make_unique<Node>();
  *slot = Node{};
  slot->hook = this;
  return *slot;
}

Hook::Node& Hook::record(const ggml_tensor& node, const AttentionFacts& facts) {
  Node& attention = record(node);
  attention.layer = parse_cache_name(facts.key_cache)->layer;
  attention.scale = facts.scale;
  attention.softcap = facts.softcap;
  attention.alibi = alibi_slopes(facts.max_bias, facts.q_heads);
  return attention;
}

void Hook::make_custom(ggml_tensor& node, ggml_custom_op_t function, int n_tasks, Node& record) {
  // The layout of a custom op's parameters is ggml's secret: let it make one and take op and parameters over.
  ggml_reset(scratch_.get());
  const ggml_tensor* model =
      ggml_custom_4d(scratch_.get(), GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, function, n_tasks, &record);
  node.op = model->op;
  std::memcpy(node.op_params, model->op_params, sizeof node.op_params);
}

void Hook::run_write(ggml_tensor* node, int ith, int, void* record) noexcept {
  const Node& written = *static_cast<const Node*>(record);
  Hook& self = *written.hook;
  if (ith != 0 || self.failed_) return;
  self.guard([&] { self.take_rows(written, *node->src[0]); });
}

void Hook::run_attention(ggml_tensor* node, int ith, int nth, void* record) noexcept {
  const Node& attention = *static_cast<const Node*>(record);
  Hook& self = *attention.hook;
  if (self.failed_) return;
  const AttendOut out{.data = static_cast<float*>(node->data),
                      .stride_batch = 0,
                      .stride_token = floats(node->nb[2]),
                      .stride_head = floats(node->nb[1])};
  self.guard([&] { self.attend(attention, *node->src[0], out, ith, nth); });
}

void Hook::run_first_product(ggml_tensor* node, int ith, int nth, void* record) noexcept {
  Node& attention = *static_cast<Node*>(record);
  Hook& self = *attention.hook;
  // What lies between the products computes on these numbers.
  for (int64_t row = ith; row < ggml_nrows(node); row += nth) {
    std::memset(static_cast<char*>(node->data) + static_cast<size_t>(row) * node->nb[1], 0, node->nb[1]);
  }
  if (self.failed_) return;
  const AttendOut out{.data = attention.attended.data(),
                      .stride_batch = 0,
                      .stride_token = int64_t{attention.q_heads} * attention.dim_v,
                      .stride_head = attention.dim_v};
  self.guard([&] { self.attend(attention, *node->src[1], out, ith, nth); });
}

void Hook::run_second_product(ggml_tensor* node, int ith, int, void* record) noexcept {
  const Node& attention = *static_cast<const Node*>(record)->first;
  if (ith != 0 || attention.hook->failed_) return;
  const float* row = attention.attended.data();
  for (int64_t token = 0; token < node->ne[1]; ++token) {
    for (int64_t head = 0; head < node->ne[2]; ++head, row += attention.dim_v) {
      char* to = static_cast<char*>(node->data) + static_cast<size_t>(token) * node->nb[1] +
                 static_cast<size_t>(head) * node->nb[2];
      std::memcpy(to, row, static_cast<size_t>(attention.dim_v) * sizeof(float));
    }
  }
}

void Hook::take_rows(const Node& record, const ggml_tensor& rows) {
  const auto* data = static_cast<const float*>(rows.data);
  if (record.side == Side::key) {
    const int width = static_cast<int>(rows.ne[0]), tokens = static_cast<int>(rows.ne[1]);
    if (const auto latent = latent_.find(record.layer); latent != latent_.end()) {
      return append(record.layer, {data, tokens, width, floats(rows.nb[1])},
                    {data, tokens, latent->second, floats(rows.nb[1])});
    }
    // The memory of the keys may be reused before the values are there.
    keys_.resize(static_cast<size_t>(width) * static_cast<size_t>(tokens));
    for (int t = 0; t < tokens; ++t) {
      std::memcpy(&keys_[static_cast<size_t>(t) * static_cast<size_t>(width)], data + t * floats(rows.nb[1]),
                  static_cast<size_t>(width) * sizeof(float));
    }
    keys_layer_ = record.layer;
    keys_tokens_ = tokens;
    return;
  }
  const int64_t numbers = ggml_nelements(&rows);
  if (keys_layer_ != record.layer || numbers % keys_tokens_ != 0) {
    throw std::runtime_error(fmt::format("layer {} wrote values without keys", record.layer));
  }
  keys_layer_ = -1;
  const int tokens = keys_tokens_, key_width = static_cast<int>(keys_.size()) / tokens;
  // Without flash attention llama writes values number by number.
  const int width = static_cast<int>(numbers / tokens);
  const int64_t stride = rows.ne[0] == width ? floats(rows.nb[1]) : width;
  append(record.layer, {keys_.data(), tokens, key_width, key_width}, {data, tokens, width, stride});
}

void Hook::append(int layer, const NewRows& keys, const NewRows& values) {
  int at = 0;
  for (const HookPart& part : parts_) {
    const auto rows = [&](const NewRows& all) {
      return NewRows{all.data + at * all.stride_token, part.tokens, all.width, all.stride_token};
    };
    if (at + part.tokens > keys.tokens) break;
    part.calls->append(layer, rows(keys), rows(values));
    at += part.tokens;
  }
  if (at != keys.tokens) throw std::runtime_error(fmt::format("llama cut a call: {} tokens came at once", keys.tokens));
}

void Hook::attend(const Node& record, const ggml_tensor& q, const AttendOut& out, int ith, int nth) {
  AttendIn in;
  in.q = {.data = q.data,
          .dtype = DType::f32,
          .batch = 1,
          .tokens = 0,
          .heads = static_cast<int>(q.ne[2]),
          .dim = static_cast<int>(q.ne[0]),
          .stride_batch = 0,
          .stride_token = floats(q.nb[1]),
          .stride_head = floats(q.nb[2])};
  in.scale = record.scale;
  in.softcap = record.softcap;
  in.alibi = record.alibi;
  if (record.sinks) in.sinks = {static_cast<const float*>(record.sinks->data), static_cast<size_t>(in.q.heads)};
  if (model_) {
    const LayerDesc& layer = model_->layers[static_cast<size_t>(record.layer)];
    in.window = layer.window;
    in.chunk = layer.chunk;
  }
  AttendOut part_out = out;
  for (const HookPart& part : parts_) {
    in.q.tokens = part.tokens;
    part.calls->attend(record.layer, in, part_out, ith, nth);
    in.q.data = static_cast<const float*>(in.q.data) + part.tokens * in.q.stride_token;
    part_out.data += part.tokens * out.stride_token;
  }
}

}  // namespace veloxquant::llama
