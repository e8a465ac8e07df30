#include "hosts/llama/hook.h"

#include <fmt/format.h>
#include <ggml-backend.h>

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

float float_parameter(const ggml_tensor& node, int index) {
  float value;
  std::memcpy(&value, &node.op_params[index], sizeof value);
  return value;
}

int64_t floats(size_t bytes) { return static_cast<int64_t>(bytes / sizeof(float)); }

AttentionFacts describe(const ggml_tensor& node) {
  const ggml_tensor &q = *node.src[0], &k = *node.src[1], &v = *node.src[2];
  const ggml_tensor* mask = node.src[3] ? &root_of(*node.src[3]) : nullptr;
  const ggml_tensor &key_root = root_of(k), &value_root = root_of(v);
  AttentionFacts facts;
  facts.key_cache = name_of(key_root);
  facts.value_cache = name_of(value_root);
  facts.f32 = q.type == GGML_TYPE_F32 && node.type == GGML_TYPE_F32 && q.nb[0] == sizeof(float);
  facts.on_host = key_root.buffer && ggml_backend_buffer_is_host(key_root.buffer);
  facts.mask_is_input = mask && mask->op == GGML_OP_NONE && name_of(*mask).starts_with(kMaskInput);
  facts.sparse_rows = node.op_params[kSparseRowsParameter];
  facts.streams = static_cast<int>(q.ne[3]);
  facts.scale = float_parameter(node, 0);
  facts.max_bias = float_parameter(node, 1);
  facts.softcap = float_parameter(node, 2);
  facts.sinks = node.src[4] != nullptr;
  facts.q_heads = static_cast<int>(q.ne[2]);
  facts.key_heads = static_cast<int>(k.ne[2]);
  facts.value_heads = static_cast<int>(v.ne[2]);
  facts.dim_k = static_cast<int>(k.ne[0]);
  facts.dim_v = static_cast<int>(v.ne[0]);
  return facts;
}

}  // namespace

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
  // In a reused graph a node is a custom op already.
  if (ask && node->op == GGML_OP_SET_ROWS) self.guard([&] { self.rewrite_write(*node); });
  if (ask && node->op == GGML_OP_FLASH_ATTN_EXT) self.guard([&] { self.rewrite_attention(*node); });
  return !ask;  // ask: nothing needs to be seen, so the whole graph is computed in one go
}

bool Hook::on_abort(void* hook) noexcept {
  const Hook& self = *static_cast<const Hook*>(hook);
  return self.failed_ || self.cancelled();
}

void Hook::arm(LayerCalls& calls, GraphFacts* facts) {
  calls_ = &calls;
  facts_ = facts;
  keys_layer_ = -1;
  message_.clear();
  failed_ = false;
}

void Hook::disarm() {
  calls_ = nullptr;
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
  Node& written = record(node);
  written.layer = cache->layer;
  written.side = cache->side;
  make_custom(node, &Hook::run_write, 1, written);
}

void Hook::rewrite_attention(ggml_tensor& node) {
  const AttentionFacts facts = describe(node);
  if (facts_) {
    facts_->attention.push_back(facts);
    if (!parse_cache_name(facts.key_cache)) return;
  }
  if (const auto refusal = refuse_attention(facts)) throw std::runtime_error("the model can't be served: " + *refusal);
  Node& attention = record(node);
  attention.layer = parse_cache_name(facts.key_cache)->layer;
  attention.scale = facts.scale;
  attention.alibi = alibi_slopes(facts.max_bias, facts.q_heads);
  make_custom(node, &Hook::run_attention, GGML_N_TASKS_MAX, attention);
}

Hook::Node& Hook::record(const ggml_tensor& node) {
  std::unique_ptr<Node>& slot = nodes_[&node];  // a rebuilt graph reuses the addresses of nodes
  if (!slot) slot = std::make_unique<Node>();
  *slot = Node{};
  slot->hook = this;
  return *slot;
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
  self.guard([&] { self.attend(attention, *node, ith, nth); });
}

void Hook::take_rows(const Node& record, const ggml_tensor& rows) {
  const int width = static_cast<int>(rows.ne[0]), tokens = static_cast<int>(rows.ne[1]);
  const auto* data = static_cast<const float*>(rows.data);
  if (record.side == Side::key) {
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
  if (keys_layer_ != record.layer || keys_tokens_ != tokens) {
    throw std::runtime_error(fmt::format("layer {} wrote values without keys", record.layer));
  }
  keys_layer_ = -1;
  const int key_width = static_cast<int>(keys_.size()) / tokens;
  calls_->append(record.layer, {keys_.data(), tokens, key_width, key_width}, {data, tokens, width, floats(rows.nb[1])});
}

void Hook::attend(const Node& record, const ggml_tensor& node, int ith, int nth) {
  const ggml_tensor& q = *node.src[0];
  AttendIn in;
  in.q = {.data = q.data,
          .dtype = DType::f32,
          .batch = 1,
          .tokens = static_cast<int>(q.ne[1]),
          .heads = static_cast<int>(q.ne[2]),
          .dim = static_cast<int>(q.ne[0]),
          .stride_batch = 0,
          .stride_token = floats(q.nb[1]),
          .stride_head = floats(q.nb[2])};
  in.scale = record.scale;
  in.alibi = record.alibi;
  const AttendOut out{.data = static_cast<float*>(node.data),
                      .stride_batch = 0,
                      .stride_token = floats(node.nb[2]),
                      .stride_head = floats(node.nb[1])};
  calls_->attend(record.layer, in, out, ith, nth);
}

}  // namespace veloxquant::llama
