#include "hosts/llama/model_facts.h"

#include <fmt/format.h>
#include <gguf.h>
#include <llama.h>

#include <memory>
#include <stdexcept>

namespace veloxquant::llama {
namespace {

/// llama's convention for texts: the answer is the full length, of which at most the buffer was written.
template <class Read>
std::string read_string(Read&& read) {
  std::string text(256, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int length = read(text.data(), text.size());
    if (length < 0) return {};
    const bool whole = static_cast<size_t>(length) < text.size();
    text.resize(static_cast<size_t>(length) + (whole ? 0 : 1));
    if (whole) break;
  }
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

std::map<std::string, std::string> read_metadata(const llama_model& model) {
  std::map<std::string, std::string> metadata;
  for (int i = 0; i < llama_model_meta_count(&model); ++i) {
    const std::string key =
        read_string([&](char* buffer, size_t size) { return llama_model_meta_key_by_index(&model, i, buffer, size); });
    metadata[key] = read_string(
        [&](char* buffer, size_t size) { return llama_model_meta_val_str_by_index(&model, i, buffer, size); });
  }
  return metadata;
}

}  // namespace

std::set<std::string> read_tensor_names(const std::string& path) {
  const std::unique_ptr<gguf_context, void (*)(gguf_context*)> file(
      gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}), gguf_free);
  if (!file) throw std::runtime_error(fmt::format("{}: its GGUF header can't be read", path));
  std::set<std::string> names;
  for (int64_t i = 0; i < gguf_get_n_tensors(file.get()); ++i) names.insert(gguf_get_tensor_name(file.get(), i));
  return names;
}

ModelFacts read_facts(const llama_model& model, std::set<std::string> tensors) {
  ModelFacts facts;
  facts.tensors = std::move(tensors);
  for (const auto& [key, value] : read_metadata(model)) {
    if (key == "general.architecture") facts.architecture = value;
    facts.metadata[key] = value;
  }
  const std::string prefix = facts.architecture + ".";
  for (const auto& [key, value] : std::map(facts.metadata)) {
    if (key.starts_with(prefix)) facts.metadata[key.substr(prefix.size())] = value;
  }
  facts.trained_context = llama_model_n_ctx_train(&model);
  facts.window = llama_model_n_swa(&model);
  facts.encoder = llama_model_has_encoder(&model);
  facts.decoder = llama_model_has_decoder(&model);
  facts.recurrent = llama_model_is_recurrent(&model);
  facts.hybrid = llama_model_is_hybrid(&model);
  facts.diffusion = llama_model_is_diffusion(&model);
  return facts;
}

}  // namespace veloxquant::llama
