// Puts our cache and attention into the graphs of an unmodified libllama.
//
// The scheduler shows every node to its eval callback before the nodes are computed. There the writes to llama's cache
// (SET_ROWS) and the attention (FLASH_ATTN_EXT) become custom ops that call back into a LayerCalls; all else of the
// node stays. llama's own cache is never written. llama reuses graphs, and so the rewritten nodes.
#pragma once

#include <ggml.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "hosts/llama/graph_rules.h"
#include "hosts/llama/layer_calls.h"

namespace veloxquant::llama {

class Hook {
 public:
  explicit Hook(const std::atomic<bool>* cancel);
  ~Hook();
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  /// For llama_context_params, with the hook as user data.
  static bool on_node(ggml_tensor* node, bool ask, void* hook) noexcept;
  static bool on_abort(void* hook) noexcept;

  /// Graphs call `calls` from here on; `facts`, where given, collects what they are made of.
  void arm(LayerCalls& calls, GraphFacts* facts = nullptr);
  void disarm();
  bool failed() const { return failed_; }
  bool cancelled() const { return cancel_ && *cancel_; }
  /// What went wrong first since arm().
  std::string message() const;

 private:
  /// What a rewritten node stands for. Nodes and their addresses outlive calls and sessions, so nothing of a call is
  /// in here.
  struct Node {
    Hook* hook = nullptr;
    int layer = 0;
    Side side = Side::key;
    float scale = 0;
    std::vector<float> alibi;
  };

  static void run_write(ggml_tensor* node, int ith, int nth, void* record) noexcept;
  static void run_attention(ggml_tensor* node, int ith, int nth, void* record) noexcept;

  void rewrite_write(ggml_tensor& node);
  void rewrite_attention(ggml_tensor& node);
  Node& record(const ggml_tensor& node);
  void make_custom(ggml_tensor& node, ggml_custom_op_t function, int n_tasks, Node& record);
  void take_rows(const Node& record, const ggml_tensor& rows);
  void attend(const Node& record, const ggml_tensor& node, int ith, int nth);
  /// Runs `work`; what it throws becomes the failure of the call, because no exception may cross ggml's frames.
  template <class Work>
  void guard(Work&& work) noexcept;
  void fail(const char* message) noexcept;

  const std::atomic<bool>* cancel_;
  std::unique_ptr<ggml_context, void (*)(ggml_context*)> scratch_;
  std::unordered_map<const ggml_tensor*, std::unique_ptr<Node>> nodes_;

  LayerCalls* calls_ = nullptr;
  GraphFacts* facts_ = nullptr;
  std::vector<float> keys_;  ///< keys of `keys_layer_`, until its values are there
  int keys_layer_ = -1, keys_tokens_ = 0;

  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::string message_;
};

}  // namespace veloxquant::llama
