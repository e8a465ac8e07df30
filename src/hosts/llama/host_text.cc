// Texts and tokens: all of it is llama's, with its C conventions wrapped.
#include <fmt/format.h>
#include <llama.h>

#include "hosts/llama/host.h"

namespace veloxquant::llama {

std::vector<Token> LlamaHost::tokenize(std::string_view text, bool special, bool first) const {
  std::vector<Token> tokens(text.size() + 8);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int count = llama_tokenize(vocab(), text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                     static_cast<int32_t>(tokens.size()), first, special);
    tokens.resize(static_cast<size_t>(std::abs(count)));  // negative: how many it would be
    if (count >= 0) return tokens;
  }
  throw std::runtime_error("libllama can't turn the text into tokens");
}

std::string LlamaHost::piece(Token token) const {
  std::string text(32, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int bytes = llama_token_to_piece(vocab(), token, text.data(), static_cast<int32_t>(text.size()), 0, false);
    text.resize(static_cast<size_t>(std::abs(bytes)));
    if (bytes >= 0) break;
  }
  return text;
}

bool LlamaHost::ends_text(Token token) const { return llama_vocab_is_eog(vocab(), token); }

bool LlamaHost::has_chat_template() const { return llama_model_chat_template(model_.get(), nullptr) != nullptr; }

std::string LlamaHost::chat_text(std::span<const ChatMessage> messages) const {
  const char* format = llama_model_chat_template(model_.get(), nullptr);
  if (!format) throw std::runtime_error(fmt::format("{}: the model has no chat template", path_));
  std::vector<llama_chat_message> views;
  size_t size = 256;
  for (const ChatMessage& message : messages) {
    views.push_back({message.role.c_str(), message.text.c_str()});
    size += message.text.size() + 64;
  }
  std::string prompt(size, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int bytes = llama_chat_apply_template(format, views.data(), views.size(), true, prompt.data(),
                                                static_cast<int32_t>(prompt.size()));
    if (bytes < 0) {
      throw std::runtime_error(fmt::format("{}: libllama does not know the model's chat template", path_));
    }
    const bool whole = static_cast<size_t>(bytes) <= prompt.size();
    prompt.resize(static_cast<size_t>(bytes));
    if (whole) break;
  }
  return prompt;
}

}  // namespace veloxquant::llama
