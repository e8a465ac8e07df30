#include "ggml_attention.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"

namespace veloxquant::bench {
namespace {

struct FreeContext {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
struct FreeThreads {
  void operator()(ggml_threadpool* threads) const { ggml_threadpool_free(threads); }
};

ggml_type ggml_type_of(GgmlType type) {
  return type == GgmlType::f16 ? GGML_TYPE_F16 : type == GgmlType::q8_0 ? GGML_TYPE_Q8_0 : GGML_TYPE_Q4_0;
}

/// Rows of one head and side in a type of ggml, token by token of the period.
std::vector<std::byte> quantised_rows(const Workload& workload, ggml_type type, Side side, int head) {
  const size_t row_bytes = ggml_row_size(type, workload.dim);
  std::vector<std::byte> rows(row_bytes * Workload::kPeriod);
  for (int t = 0; t < Workload::kPeriod; ++t) {
    std::byte* row = rows.data() + static_cast<size_t>(t) * row_bytes;
    ggml_quantize_chunk(type, workload.row(side, t, head), row, 0, 1, workload.dim, nullptr);
  }
  return rows;
}

/// 0 where a query may look, minus infinity elsewhere: [query][row].
std::vector<ggml_fp16_t> causal_mask(int stored, int queries) {
  const int rows = stored + queries;
  std::vector<ggml_fp16_t> mask(static_cast<size_t>(rows) * static_cast<size_t>(queries), ggml_fp32_to_fp16(-INFINITY));
  for (int i = 0; i < queries; ++i) {
    std::fill_n(mask.begin() + int64_t{i} * rows, stored + i + 1, ggml_fp32_to_fp16(0.0f));
  }
  return mask;
}

}  // namespace

std::string ggml_version_text() { return ggml_version(); }

/// One graph of a single node for each copy. Tensors own no memory; they point into `store`, which holds keys, then
/// values of copy after copy.
struct GgmlAttention::Graphs {
  const Workload& workload;
  ggml_type type;
  GgmlLayout layout;
  int rows, kv_heads;
  size_t row_bytes, side_bytes;
  std::unique_ptr<HugeBuffer> store;
  std::vector<ggml_fp16_t> mask;
  std::vector<float> output;
  std::unique_ptr<ggml_context, FreeContext> context;
  std::vector<ggml_cgraph*> graphs;
  std::unique_ptr<ggml_threadpool, FreeThreads> threads;
  ggml_cplan plan{};
  std::vector<uint8_t> work;
  size_t next = 0;

  Graphs(const Workload& of, GgmlType of_type, GgmlLayout of_layout, int tokens, int queries, int heads)
      : workload(of),
        type(ggml_type_of(of_type)),
        layout(of_layout),
        rows(tokens + queries),
        kv_heads(heads),
        row_bytes(ggml_row_size(type, workload.dim)),
        side_bytes(row_bytes * static_cast<size_t>(rows) * static_cast<size_t>(kv_heads)),
        output(static_cast<size_t>(queries) * static_cast<size_t>(kv_heads * kGroup * workload.dim)) {
    if (queries > 1) mask = causal_mask(tokens, queries);
  }

  size_t copy_bytes() const { return 2 * side_bytes; }
  std::byte* side_data(size_t copy, Side side) const {
    return store->data() + copy * copy_bytes() + (side == Side::value ? side_bytes : 0);
  }

  void fill(size_t copies) {
    store = std::make_unique<HugeBuffer>(copies * copy_bytes());
    for (const Side side : kSides) {
      for (int head = 0; head < kv_heads; ++head) fill_head(side, head);
    }
    for (size_t copy = 1; copy < copies; ++copy) {
      std::memcpy(side_data(copy, Side::key), side_data(0, Side::key), copy_bytes());
    }
  }

  void fill_head(Side side, int head) {
    const std::vector<std::byte> period = quantised_rows(workload, type, side, head);
    for (int t = 0; t < rows; ++t) {
      const int at = layout == GgmlLayout::contiguous ? head * rows + t : t * kv_heads + head;
      std::memcpy(side_data(0, side) + static_cast<size_t>(at) * row_bytes,
                  period.data() + static_cast<size_t>(t % Workload::kPeriod) * row_bytes, row_bytes);
    }
  }

  void build(size_t copies, int queries) {
    const size_t bytes = copies * (5 * ggml_tensor_overhead() + ggml_graph_overhead_custom(8, false));
    context.reset(ggml_init({.mem_size = bytes + 4096, .mem_buffer = nullptr, .no_alloc = true}));
    VQ_CHECK(context);
    for (size_t copy = 0; copy < copies; ++copy) {
      ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 8, false);
      ggml_build_forward_expand(graph, attention_node(copy, queries));
      graphs.push_back(graph);
    }
  }

  ggml_tensor* attention_node(size_t copy, int queries) {
    ggml_context* ctx = context.get();
    ggml_tensor* q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, workload.dim, queries, kv_heads * kGroup);
    q->data = const_cast<float*>(workload.q.data());
    q->nb[2] = static_cast<size_t>(workload.dim) * sizeof(float);  // [token][head][dim], as llama.cpp has it
    q->nb[1] = kQHeads * q->nb[2];
    q->nb[3] = q->nb[1] * static_cast<size_t>(queries);
    ggml_tensor* masked = nullptr;
    if (!mask.empty()) {
      masked = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, rows, queries);
      masked->data = mask.data();
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(workload.dim));
    ggml_tensor* out = ggml_flash_attn_ext(ctx, q, side_tensor(copy, Side::key), side_tensor(copy, Side::value), masked,
                                           scale, 0.0f, 0.0f);
    out->data = output.data();
    return out;
  }

  ggml_tensor* side_tensor(size_t copy, Side side) {
    ggml_tensor* tensor = ggml_new_tensor_3d(context.get(), type, workload.dim, rows, kv_heads);
    tensor->data = side_data(copy, side);
    if (layout == GgmlLayout::interleaved) {
      tensor->nb[2] = row_bytes;
      tensor->nb[1] = row_bytes * static_cast<size_t>(kv_heads);
    }
    return tensor;
  }
};

GgmlAttention::GgmlAttention(const Workload& workload, GgmlType type, GgmlLayout layout, int tokens, int queries,
                             int kv_heads, size_t rotating_bytes)
    : graphs_(std::make_unique<Graphs>(workload, type, layout, tokens, queries, kv_heads)) {
  ggml_cpu_init();
  const size_t copies = rotating_bytes / graphs_->copy_bytes() + 1;
  graphs_->fill(copies);
  graphs_->build(copies, queries);
}

GgmlAttention::~GgmlAttention() = default;

void GgmlAttention::use_threads(int threads) {
  Graphs& g = *graphs_;
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  g.threads.reset(ggml_threadpool_new(&params));
  g.plan = ggml_graph_plan(g.graphs.front(), threads, g.threads.get());
  g.work.resize(g.plan.work_size);
  g.plan.work_data = g.work.data();
}

void GgmlAttention::call() {
  Graphs& g = *graphs_;
  VQ_CHECK(ggml_graph_compute(g.graphs[g.next], &g.plan) == GGML_STATUS_SUCCESS);
  g.next = (g.next + 1) % g.graphs.size();
}

int GgmlAttention::copies() const { return static_cast<int>(graphs_->graphs.size()); }
size_t GgmlAttention::bytes() const { return graphs_->copy_bytes(); }
const std::vector<float>& GgmlAttention::output() const { return graphs_->output; }

}  // namespace veloxquant::bench
