#include "hosts/llama/log.h"

#include <llama.h>

#include <cstdio>
#include <mutex>

namespace veloxquant::llama {
namespace {

struct Sink {
  std::mutex mutex;
  bool capturing = false;
  bool error = false;  ///< of the message that continuation lines belong to
  std::string text;
};

Sink& sink() {
  static Sink instance;
  return instance;
}

void on_message(ggml_log_level level, const char* text, void*) {
  Sink& out = sink();
  const std::lock_guard lock(out.mutex);
  if (level != GGML_LOG_LEVEL_CONT) out.error = level == GGML_LOG_LEVEL_ERROR;
  if (!out.error) return;
  if (out.capturing) {
    out.text += text;
  } else {
    std::fputs(text, stderr);
  }
}

}  // namespace

void quiet_logs() { llama_log_set(on_message, nullptr); }

LogCapture::LogCapture() {
  const std::lock_guard lock(sink().mutex);
  sink().capturing = true;
  sink().text.clear();
}

LogCapture::~LogCapture() {
  const std::lock_guard lock(sink().mutex);
  sink().capturing = false;
}

std::string LogCapture::first_error(const std::string& otherwise) const {
  const std::lock_guard lock(sink().mutex);
  const std::string line = sink().text.substr(0, sink().text.find('\n'));
  return line.empty() ? otherwise : line;
}

}  // namespace veloxquant::llama
