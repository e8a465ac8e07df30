#include "hosts/llama/text_rules.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace veloxquant::llama {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr size_t kHeaderBytes = 24;  // magic, version, tensor count, metadata count

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  throw std::runtime_error(fmt::format("{}: {}", path, what));
}

std::ifstream open_file(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) fail(path, "no such file");
  if (std::filesystem::is_directory(status)) fail(path, "is a folder, not a file");
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, std::strerror(errno));
  return file;
}

/// What the bytes at `text` are: a character of `size` bytes, the start of one that needs more, or neither.
struct Character {
  size_t size = 0;  ///< 0: not a character
  bool incomplete = false;
};

Character read_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, false};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < size; ++i) {
    if (i == text.size()) return {size, true};
    // The second byte also rules out overlong forms, surrogates and what lies above U+10FFFF.
    const uint8_t low = i > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = i > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(i) < low || byte(i) > high) return {};
  }
  return {size, false};
}

}  // namespace

void check_model_file(const std::string& path) {
  std::ifstream file = open_file(path);
  char header[kHeaderBytes] = {};
  file.read(header, sizeof header);
  const auto bytes = static_cast<size_t>(file.gcount());
  if (bytes == 0) fail(path, "is empty");
  if (bytes < 4 || std::memcmp(header, "GGUF", 4) != 0) fail(path, "is not a GGUF model (it does not start with GGUF)");
  if (bytes < kHeaderBytes) fail(path, "is cut short: its GGUF header is not complete");
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  size_t at = 0;
  while (at < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(at);
    const Character character = read_character(rest);
    if (character.incomplete) break;
    text += character.size == 0 ? kReplacement : rest.substr(0, character.size);
    at += character.size == 0 ? 1 : character.size;
  }
  pending_.erase(0, at);
  return text;
}

std::string Utf8Stream::finish() {
  const bool cut = !pending_.empty();
  pending_.clear();
  return cut ? std::string(kReplacement) : std::string();
}

}  // namespace veloxquant::llama
