// llama's own messages: errors only, and those of a failing call become part of our message.
#pragma once

#include <string>

namespace veloxquant::llama {

/// Sends llama's and ggml's errors to stderr and drops the rest. Idempotent.
void quiet_logs();

/// While it lives, llama's errors are collected instead of printed. One at a time.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  /// The first collected error, or `otherwise`.
  std::string first_error(const std::string& otherwise) const;
};

}  // namespace veloxquant::llama
