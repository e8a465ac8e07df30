// Puts our cache and attention into the graphs of an unmodified libllama.
//
// The scheduler shows every node to its eval callback before any of them is computed. There the writes to llama's cache
// (SET_ROWS) and the attention (FLASH_ATTN_EXT) become custom ops that call back into a LayerCalls; all else of the
// node stays. llama's own cache is never written. llama reuses graphs, and so the rewritten nodes.
//
// A graph without flash attention has two products instead, with scaling, capping and softmax between. The first one
// becomes the whole attention, into memory of ours, because the queries are alive only there; the second one copies the
// result out; what lies between works on zeros.
#pragma once

#include <ggml.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "hosts/llama/graph_rules.h"
#include "hosts/llama/layer_calls.h"

namespace veloxquant::llama {

/// The consecutive tokens of a call that belong to one sequence.
struct HookPart {
  LayerCalls* calls = nullptr;
  int tokens = 0;
};

class Hook {
 public:
  explicit Hook(const std::atomic<bool>* cancel);
  ~Hook();
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  /// For llama_context_params, with the hook as user data.
  static bool on_node(ggml_tensor* node, bool ask, void* hook) noexcept;
  static bool on_abort(void* hook) noexcept;

  /// Graphs call these parts from here on; `facts`, where given, collects what they are made of.
  void arm(std::vector<HookPart> parts, GraphFacts* facts = nullptr);
  void disarm();
  /// Which rows the layers see; all of them before this is told. Outlives the hook's use.
  void set_model(const ModelDesc& model) { model_ = &model; }
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
    float scale = 0, softcap = 0;
    std::vector<float> alibi;
    const ggml_tensor* sinks = nullptr;
    // Of the first product in a graph without flash attention; [tokens][q_heads][dim_v].
    std::vector<float> attended;
    int q_heads = 0, dim_v = 0;
    const Node* first = nullptr;  ///< of the second product: the record of the first
  };
  /// The parts of attention in a graph without flash attention.
  struct Products;

  static void run_write(ggml_tensor* node, int ith, int nth, void* record) noexcept;
  static void run_attention(ggml_tensor* node, int ith, int nth, void* record) noexcept;
  static void run_first_product(ggml_tensor* node, int ith, int nth, void* record) noexcept;
  static void run_second_product(ggml_tensor* node, int ith, int nth, void* record) noexcept;

  void rewrite_write(ggml_tensor& node);
  void rewrite_attention(ggml_tensor& node);
  void rewrite_products(ggml_tensor& node);
  static std::optional<Products> find_products(ggml_tensor& node);
  /// False where the node is not ours to replace. Throws where it can't be served.
  void note_states(const ggml_tensor& node);
  void note_rotation(int layer, const ggml_tensor& rows);
  bool take_facts(const AttentionFacts& facts);
  Node& record(const ggml_tensor& node);
  Node& record(const ggml_tensor& node, const AttentionFacts& facts);
  void make_custom(ggml_tensor& node, ggml_custom_op_t function, int n_tasks, Node& record);
  void take_rows(const Node& record, const ggml_tensor& rows);
  void append(int layer, const NewRows& keys, const NewRows& values);
  void attend(const Node& record, const ggml_tensor& q, const AttendOut& out, int ith, int nth);
  /// Runs `work`; what it throws becomes the failure of the call, because no exception may cross ggml's frames.
  template <class Work>
  void guard(Work&& work) noexcept;
  void fail(const char* message) noexcept;

  const std::atomic<bool>* cancel_;
  std::unique_ptr<ggml_context, void (*)(ggml_context*)> scratch_;
  std::unordered_map<const ggml_tensor*, std::unique_ptr<Node>> nodes_;

  const ModelDesc* model_ = nullptr;
  std::map<int, int> latent_;  ///< layers whose values are the first channels of their keys, and how many

  std::vector<HookPart> parts_;
  GraphFacts* facts_ = nullptr;
  std::vector<float> keys_;  ///< keys of `keys_layer_`, until its values are there
  int keys_layer_ = -1, keys_tokens_ = 0;

  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::string message_;
};

}  // namespace veloxquant::llama
