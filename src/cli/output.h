// What the commands say: tables and texts on stdout, progress and errors on stderr.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace veloxquant::cli {

/// True when `stream` is a terminal and NO_COLOR (no-color.org) is unset or empty.
bool use_color(std::FILE* stream);

/// Writes to stdout; throws std::runtime_error when it can't be written (a full disk behind a redirection).
void print(std::string_view text);
/// Writes what stdout still buffers, with the same error.
void flush_output();
/// "veloxquant: <message>" on stderr; further lines of the message are indented.
void print_error(std::string_view message);

/// Columns as wide as their widest cell, two spaces apart.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;  ///< numbers
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// One cell a column.
  void add(std::vector<std::string> cells);
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// How far a piece of work is, on stderr: a bar on a terminal, elsewhere a plain line at each tenth of the work.
class Progress {
 public:
  Progress(std::string label, int64_t total);
  ~Progress();  ///< removes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// `note` says what comes next or was just done, in a few words.
  void advance(int64_t steps = 1, std::string_view note = {});

 private:
  void draw_bar(std::string_view note);

  std::string label_;
  int64_t total_ = 0, done_ = 0;
  bool terminal_ = false, color_ = false;
  std::chrono::steady_clock::time_point drawn_{};
};

/// Refuses a path that write_json could not write, before work starts: throws std::runtime_error with the path and the
/// system's reason. Leaves no file behind.
void check_writable(const std::string& path);
/// Writes {"schema_version": 1, "rows": rows} all or nothing: to a temporary name beside `path`, every write and the
/// close checked, then renamed. "-" is stdout. Throws std::runtime_error.
void write_json(const std::string& path, const nlohmann::ordered_json& rows);

/// "1.3 MiB"; bytes below 1 KiB as "17 B".
std::string bytes_text(double bytes);

}  // namespace veloxquant::cli
