#include "hosts/llama/plain.h"

#include <fmt/format.h>
#include <llama.h>

#include <algorithm>

#include "hosts/llama/batch.h"
#include "hosts/llama/log.h"

namespace veloxquant::llama {
namespace {

ggml_type type_named(std::string_view name) {
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
    if (name == ggml_type_name(type)) return type;
  }
  throw std::runtime_error(fmt::format("llama:{}: the cache types are f32, f16, q8_0 and q4_0", name));
}

}  // namespace

PlainRun::PlainRun(LlamaHost& host, const PlainOptions& options)
    : host_(host), type_(type_named(options.type)), chunk_tokens_(options.chunk_tokens), context_(nullptr, llama_free) {
  const LogCapture log;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(options.context);
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(options.chunk_tokens);
  params.n_seq_max = 1;
  params.yarn_orig_ctx = static_cast<uint32_t>(host.original_context());
  params.kv_unified = true;
  params.n_threads = params.n_threads_batch = host.threads();
  params.type_k = params.type_v = static_cast<ggml_type>(type_);
  params.flash_attn_type = options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.offload_kqv = params.op_offload = false;
  params.no_perf = true;
  context_.reset(llama_init_from_model(host.model(), params));
  if (!context_) {
    throw std::runtime_error(fmt::format("llama:{}: {}", options.type, log.first_error("libllama makes no context")));
  }
}

std::span<const float> PlainRun::decode(std::span<const Token> tokens, Logits logits) {
  const LogCapture log;
  logits_.clear();
  const auto vocabulary = static_cast<size_t>(host_.vocabulary());
  for (size_t at = 0; at < tokens.size();) {
    const size_t count = std::min(tokens.size() - at, static_cast<size_t>(chunk_tokens_));
    const bool last = at + count == tokens.size();
    const Logits wanted = last || logits == Logits::all ? logits : Logits::none;
    Batch batch(tokens.subspan(at, count), position_, wanted);
    if (const int code = llama_decode(context_.get(), batch.get()); code != 0) {
      throw std::runtime_error(
          fmt::format("libllama failed with code {}: {}", code, log.first_error("no reason given")));
    }
    for (size_t i = wanted == Logits::all ? 0 : count - 1; i < count && wanted != Logits::none; ++i) {
      const float* row = llama_get_logits_ith(context_.get(), static_cast<int32_t>(i));
      logits_.insert(logits_.end(), row, row + vocabulary);
    }
    at += count;
    position_ += static_cast<int>(count);
  }
  llama_synchronize(context_.get());
  return logits_;
}

size_t PlainRun::cache_bytes(int tokens) const {
  const auto type = static_cast<ggml_type>(type_);
  size_t row_bytes = 0;
  for (const LayerShape& shape : host_.layers()) {
    row_bytes += ggml_row_size(type, shape.kv_heads * shape.dim_k);
    if (!shape.value_is_key_prefix) row_bytes += ggml_row_size(type, shape.kv_heads * shape.dim_v);
  }
  return row_bytes * static_cast<size_t>(tokens);
}

}  // namespace veloxquant::llama
