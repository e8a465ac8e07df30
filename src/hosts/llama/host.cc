#include "hosts/llama/host.h"

#include <fmt/format.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <llama.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>

#include "hosts/llama/batch.h"
#include "hosts/llama/hook.h"
#include "hosts/llama/log.h"
#include "hosts/llama/model_facts.h"
#include "hosts/llama/text_rules.h"

namespace veloxquant::llama {
namespace {

void start_backend() {
  static std::once_flag once;
  std::call_once(once, [] {
    quiet_logs();
    ggml_backend_load_all();
    llama_backend_init();
  });
  // Nodes are rewritten in place: the structures must be those of the headers.
  if (std::string_view(ggml_version()) != VQ_GGML_VERSION) {
    throw std::runtime_error(
        fmt::format("ggml {} is loaded, but this program was built for ggml {}", ggml_version(), VQ_GGML_VERSION));
  }
}

/// Counts what the graph calls, and answers attention with zeros.
class DryRun : public LayerCalls {
 public:
  void append(int layer, const NewRows& keys, const NewRows& values) override {
    appended_[layer] = {keys.width, values.width};
  }
  void attend(int layer, const AttendIn& in, const AttendOut& out, int ith, int) override {
    if (ith != 0) return;
    attended_[layer] = in.q.dim;
    for (int h = 0; h < in.q.heads; ++h) out.data[h * out.stride_head] = 0;
  }
  /// What does not fit the shapes, or nothing.
  std::optional<std::string> mismatch(std::span<const LayerShape> layers) const {
    for (const LayerShape& shape : layers) {
      const auto rows = appended_.find(shape.layer);
      const auto query = attended_.find(shape.layer);
      if (rows == appended_.end() || query == attended_.end()) {
        return fmt::format("this libllama did not call our code in layer {}", shape.layer);
      }
      const Widths expected{shape.kv_heads * shape.dim_k, shape.kv_heads * shape.dim_v};
      if (rows->second != expected || query->second != shape.dim_k) {
        return fmt::format("layer {} writes rows of {} and {} numbers instead of {} and {}", shape.layer,
                           rows->second.first, rows->second.second, expected.first, expected.second);
      }
    }
    return std::nullopt;
  }

 private:
  using Widths = std::pair<int, int>;
  std::map<int, Widths> appended_;
  std::map<int, int> attended_;
};

}  // namespace

std::string versions() {
  return fmt::format("libllama {}, ggml {} ({})", llama_version(), ggml_version(), ggml_commit());
}

LlamaHost::LlamaHost(const HostOptions& options)
    : path_(options.model),
      hook_(std::make_unique<Hook>(options.cancel)),
      model_(nullptr, llama_model_free),
      context_(nullptr, llama_free) {
  threads_ = options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  check_model_file(path_);
  start_backend();
  load();
  make_context();
  self_check();
}

LlamaHost::~LlamaHost() = default;

void LlamaHost::load() {
  const LogCapture log;
  ggml_backend_dev_t no_devices[] = {nullptr};
  llama_model_params params = llama_model_default_params();
  params.devices = no_devices;  // our code runs where the CPU's memory is
  params.n_gpu_layers = 0;
  model_.reset(llama_model_load_from_file(path_.c_str(), params));
  if (!model_) {
    throw std::runtime_error(fmt::format("{}: unknown to this libllama, damaged or cut short: {}", path_,
                                         log.first_error("no reason given")));
  }
  if (const auto refusal = refuse_model(read_facts(*model_, path_))) {
    throw std::runtime_error(fmt::format("{}: the model can't be served: {}", path_, *refusal));
  }
}

void LlamaHost::make_context() {
  const LogCapture log;
  llama_context_params params = llama_context_default_params();
  // llama's cache only has to take the cells of one call.
  params.n_ctx = params.n_batch = params.n_ubatch = kChunkTokens;
  params.n_seq_max = 1;
  params.kv_unified = true;
  params.n_threads = params.n_threads_batch = threads_;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.offload_kqv = params.op_offload = false;
  params.no_perf = true;
  params.cb_eval = Hook::on_node;
  params.cb_eval_user_data = hook_.get();
  params.abort_callback = Hook::on_abort;
  params.abort_callback_data = hook_.get();
  context_.reset(llama_init_from_model(model_.get(), params));
  if (!context_) throw std::runtime_error(fmt::format("{}: {}", path_, log.first_error("libllama can't run it")));
}

void LlamaHost::self_check() {
  GraphFacts facts;
  DryRun calls;
  const Token token = std::max(0, llama_vocab_bos(vocab()));
  std::string error;
  {
    const LogCapture log;
    hook_->arm(calls, &facts);
    Batch batch(std::span(&token, 1), 0, Logits::last);
    if (llama_decode(context_.get(), batch.get()) != 0) error = log.first_error("libllama can't compute a token");
    hook_->disarm();
    if (llama_memory_t memory = llama_get_memory(context_.get())) llama_memory_clear(memory, false);
  }
  if (hook_->cancelled()) throw Cancelled("cancelled");
  GraphVerdict verdict = judge_graph(facts);
  std::optional<std::string> refusal = verdict.refusal;
  if (!refusal && hook_->failed()) refusal = hook_->message();
  if (!refusal && !error.empty()) refusal = error;
  if (!refusal) refusal = calls.mismatch(verdict.layers);
  if (refusal) throw std::runtime_error(fmt::format("{}: the model can't be served: {}", path_, *refusal));
  layers_ = std::move(verdict.layers);
}

int LlamaHost::slot(int layer) const {
  const auto found = std::lower_bound(layers_.begin(), layers_.end(), layer,
                                      [](const LayerShape& shape, int number) { return shape.layer < number; });
  if (found == layers_.end() || found->layer != layer) return -1;
  return static_cast<int>(found - layers_.begin());
}

int LlamaHost::trained_context() const { return llama_model_n_ctx_train(model_.get()); }
int LlamaHost::vocabulary() const { return llama_vocab_n_tokens(vocab()); }
const llama_vocab* LlamaHost::vocab() const { return llama_model_get_vocab(model_.get()); }

void LlamaHost::set_threads(int threads) {
  threads_ = threads;
  llama_set_n_threads(context_.get(), threads, threads);
}

void LlamaHost::compute(LayerCalls& calls, std::span<const Token> tokens, int position, Logits logits) {
  const LogCapture log;
  Batch batch(tokens, position, logits);
  hook_->arm(calls);
  const int code = llama_decode(context_.get(), batch.get());
  hook_->disarm();
  // Nothing in there matters, and a start at any position is accepted only when it is empty.
  llama_memory_clear(llama_get_memory(context_.get()), false);
  // The flag counts whatever the code says: without outputs llama may not have noticed.
  if (hook_->failed()) throw std::runtime_error(hook_->message());
  if (hook_->cancelled()) throw Cancelled("cancelled");
  if (code != 0) {
    throw std::runtime_error(fmt::format("libllama failed with code {}: {}", code, log.first_error("no reason given")));
  }
}

std::span<const float> LlamaHost::logits(int index) const {
  const float* row = llama_get_logits_ith(context_.get(), index);
  if (!row) throw std::runtime_error(fmt::format("libllama has no logits for token {}", index));
  return {row, static_cast<size_t>(vocabulary())};
}

}  // namespace veloxquant::llama
