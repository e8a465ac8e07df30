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

constexpr int kProbeSequences = 3;

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
    for (int t = 0; t < in.q.tokens; ++t) {
      for (int h = 0; h < in.q.heads; ++h) {
        // Heads or tokens lie side by side; the shorter stride is the width of a head.
        const int64_t width = std::min(out.stride_head, out.stride_token);
        std::fill_n(out.data + t * out.stride_token + h * out.stride_head, width, 0.0F);
      }
    }
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
  context_limit_ = options.context;
  sequences_ = std::max(1, options.sequences);
  threads_ = options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (!options.load) check_model_file(path_);
  start_backend();
  load(options);
  make_context();
  self_check();
}

LlamaHost::~LlamaHost() = default;

void LlamaHost::load(const HostOptions& options) {
  std::set<std::string> tensors;
  load_model(options, tensors);
  facts_ = read_facts(*model_, std::move(tensors));
  if (const auto refusal = refuse_model(facts_)) {
    throw std::runtime_error(fmt::format("{}: the model can't be served: {}", path_, *refusal));
  }
  if (const std::optional<int> original = long_rope(facts_, context())) {
    original_context_ = *original;
    load_model(options, facts_.tensors);
  }
}

void LlamaHost::load_model(const HostOptions& options, std::set<std::string>& tensors) {
  const LogCapture log;
  ggml_backend_dev_t no_devices[] = {nullptr};
  llama_model_params params = llama_model_default_params();
  params.devices = no_devices;  // our code runs where the CPU's memory is
  params.n_gpu_layers = 0;
  llama_model_kv_override overrides[2] = {};  // the second one ends the list
  if (original_context_ > 0) {
    // Every context of llama is longer than 1 token, so the factors for long contexts are used.
    const std::string key = facts_.architecture + ".rope.scaling.original_context_length";
    overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
    key.copy(overrides[0].key, sizeof overrides[0].key - 1);
    overrides[0].val_i64 = 1;
    params.kv_overrides = overrides;
  }
  model_.reset();
  model_.reset(options.load ? options.load(params, tensors) : llama_model_load_from_file(path_.c_str(), params));
  if (!model_) {
    throw std::runtime_error(fmt::format("{}: unknown to this libllama, damaged or cut short: {}", path_,
                                         log.first_error("no reason given")));
  }
  if (!options.load) tensors = read_tensor_names(path_);
}

void LlamaHost::make_context() {
  const LogCapture log;
  llama_context_params params = llama_context_default_params();
  // llama's cache only has to take the cells of one call, and the last cell of each sequence where it keeps one.
  params.n_batch = params.n_ubatch = kChunkTokens;
  params.n_ctx = static_cast<uint32_t>(recurrent() ? kChunkTokens + sequences_ : kChunkTokens);
  params.n_seq_max = static_cast<uint32_t>(facts_.window > 0 ? std::max(sequences_, kProbeSequences) : sequences_);
  params.yarn_orig_ctx = static_cast<uint32_t>(original_context_);
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

// The cells of the probe come in three sequences, because llama wants each to go on where it stands, and are joined.
// The last call here differs in size from the one that is looked at: a reused graph would not be shown.
void LlamaHost::place_probe() {
  const auto positions = probe_positions(facts_.window);
  const std::pair<int, int> cuts[kProbeSequences] = {{0, 1}, {1, 2}, {2, 4}};
  llama_memory_t memory = llama_get_memory(context_.get());
  for (int sequence = 0; sequence < kProbeSequences; ++sequence) {
    const auto [begin, end] = cuts[sequence];
    const std::vector<Token> tokens(static_cast<size_t>(end - begin), first_token());
    DryRun calls;
    hook_->arm({{&calls, end - begin}});
    Batch batch;
    batch.add(tokens, positions[static_cast<size_t>(begin)], Logits::last, sequence);
    llama_decode(context_.get(), batch.get());
  }
  for (const int sequence : {2, 1}) {  // the newest position last: a recurrent state stands at one position only
    llama_memory_seq_cp(memory, sequence, 0, -1, -1);
    llama_memory_seq_rm(memory, sequence, -1, -1);
  }
}

void LlamaHost::self_check() {
  GraphFacts facts;
  DryRun calls;
  std::string error;
  {
    const LogCapture log;
    facts.architecture = facts_.architecture;
    facts.layers = llama_model_n_layer(model_.get());
    facts.window = facts_.window;
    if (facts.window > 0) place_probe();
    hook_->arm({{&calls, 1}}, &facts);
    const Token token = first_token();
    Batch batch(std::span(&token, 1), facts.window > 0 ? probe_positions(facts.window).back() : 0, Logits::last);
    if (llama_decode(context_.get(), batch.get()) != 0) error = log.first_error("libllama can't compute a token");
    hook_->disarm();
    if (llama_memory_t memory = llama_get_memory(context_.get())) llama_memory_clear(memory, false);
  }
  if (hook_->cancelled()) throw Cancelled("cancelled");
  GraphVerdict verdict = judge_graph(facts);
  std::optional<std::string> refusal;
  if (facts.writes.empty() && facts.attention.empty() && !error.empty()) refusal = error;  // there was no graph
  if (!refusal) refusal = verdict.refusal;
  if (!refusal && hook_->failed()) refusal = hook_->message();
  if (!refusal && !error.empty()) refusal = error;
  if (!refusal) {
    description_ = std::move(verdict.model);
    layers_ = attention_shapes(description_);
    refusal = calls.mismatch(layers_);
  }
  if (refusal) throw std::runtime_error(fmt::format("{}: the model can't be served: {}", path_, *refusal));
  rules_ = std::move(verdict.rules);
  hook_->set_model(description_);
  taken_.assign(recurrent() ? static_cast<size_t>(sequences_) : 0, false);
}

int LlamaHost::slot(int layer) const {
  const auto found = std::lower_bound(layers_.begin(), layers_.end(), layer,
                                      [](const LayerShape& shape, int number) { return shape.layer < number; });
  if (found == layers_.end() || found->layer != layer) return -1;
  return static_cast<int>(found - layers_.begin());
}

int LlamaHost::trained_context() const { return llama_model_n_ctx_train(model_.get()); }
int LlamaHost::context() const {
  return context_limit_ > 0 ? std::min(context_limit_, trained_context()) : trained_context();
}
std::string LlamaHost::attention() const { return attention_kind(facts_, description_, rules_); }
Token LlamaHost::first_token() const { return std::max(0, llama_vocab_bos(vocab())); }
int LlamaHost::vocabulary() const { return llama_vocab_n_tokens(vocab()); }
const llama_vocab* LlamaHost::vocab() const { return llama_model_get_vocab(model_.get()); }

void LlamaHost::set_threads(int threads) {
  threads_ = threads;
  llama_set_n_threads(context_.get(), threads, threads);
}

int LlamaHost::take_sequence() {
  if (!recurrent()) return -1;
  const auto free = std::find(taken_.begin(), taken_.end(), false);
  if (free == taken_.end()) {
    throw std::runtime_error(
        fmt::format("{}: the model keeps a recurrent state per session, and the host was made for {} at a time", path_,
                    taken_.size()));
  }
  *free = true;
  const int sequence = static_cast<int>(free - taken_.begin());
  forget_state(sequence);
  return sequence;
}

void LlamaHost::give_back_sequence(int sequence) {
  if (sequence >= 0) taken_[static_cast<size_t>(sequence)] = false;
}

void LlamaHost::forget_state(int sequence) {
  if (sequence >= 0) llama_memory_seq_rm(llama_get_memory(context_.get()), sequence, -1, -1);
}

void LlamaHost::compute(std::span<const Turn> turns) {
  const LogCapture log;
  Batch batch;
  std::vector<HookPart> parts;
  for (const Turn& turn : turns) {
    const int sequence = recurrent() ? turn.sequence : static_cast<int>(parts.size());
    batch.add(turn.tokens, turn.position, turn.logits, sequence);
    parts.push_back({turn.calls, static_cast<int>(turn.tokens.size())});
  }
  hook_->arm(std::move(parts));
  const int code = llama_decode(context_.get(), batch.get());
  hook_->disarm();
  // The flag counts whatever the code says: without outputs llama may not have noticed.
  const bool good = code == 0 && !hook_->failed() && !hook_->cancelled();
  release(turns, good);
  if (hook_->failed()) throw std::runtime_error(hook_->message());
  if (hook_->cancelled()) throw Cancelled("cancelled");
  if (code != 0) {
    throw std::runtime_error(fmt::format("libllama failed with code {}: {}", code, log.first_error("no reason given")));
  }
}

// Nothing in llama's attention cache matters, but it must be empty for a start at any position. Clearing it would clear
// the states of recurrent layers, too: there the newest cell of a sequence stays, and the next call starts after it.
void LlamaHost::release(std::span<const Turn> turns, bool good) {
  llama_memory_t memory = llama_get_memory(context_.get());
  if (!recurrent()) return llama_memory_clear(memory, false);
  for (const Turn& turn : turns) {
    if (good) {
      llama_memory_seq_rm(memory, turn.sequence, 0, turn.position + static_cast<int>(turn.tokens.size()) - 1);
    } else {
      forget_state(turn.sequence);
    }
  }
}

std::span<const float> LlamaHost::logits(int index) const {
  const float* row = llama_get_logits_ith(context_.get(), index);
  if (!row) throw std::runtime_error(fmt::format("libllama has no logits for token {}", index));
  return {row, static_cast<size_t>(vocabulary())};
}

}  // namespace veloxquant::llama
