#include "cli/output.h"

#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

#include "core/check.h"
#include "core/text.h"
#include "io/file.h"

namespace veloxquant::cli {
namespace {

[[noreturn]] void output_failed() {
  throw std::runtime_error(fmt::format("can't write the output: {}", std::generic_category().message(errno)));
}

}  // namespace

bool use_color(std::FILE* stream) {
  const char* no_color = std::getenv("NO_COLOR");
  return (no_color == nullptr || *no_color == '\0') && ::isatty(::fileno(stream)) == 1;
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) output_failed();
}

void flush_output() {
  if (std::fflush(stdout) != 0) output_failed();
}

void print_error(std::string_view message) {
  std::string text = use_color(stderr) ? "\x1b[31mveloxquant:\x1b[0m " : "veloxquant: ";
  for (const char c : message) {
    text += c;
    if (c == '\n') text += "  ";
  }
  text += '\n';
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void Table::add(std::vector<std::string> cells) {
  VQ_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::string> titles;
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    titles.push_back(columns_[c].title);
    widths.push_back(columns_[c].title.size());
    for (const auto& row : rows_) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string padding(widths[c] - cells[c].size(), ' ');
      out += (columns_[c].right ? padding + cells[c] : cells[c] + padding) + "  ";
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + '\n';
  };
  line(titles);
  std::ranges::for_each(rows_, line);
  return text;
}

Progress::Progress(std::string label, int64_t total)
    : label_(std::move(label)),
      total_(std::max<int64_t>(total, 1)),
      terminal_(::isatty(::fileno(stderr)) == 1),
      color_(use_color(stderr)) {}

Progress::~Progress() {
  if (terminal_) fmt::print(stderr, "\r\x1b[K");
}

void Progress::advance(int64_t steps, std::string_view note) {
  const int64_t before = done_;
  done_ = std::min(total_, done_ + steps);
  if (terminal_) return draw_bar(note);
  if (done_ * 10 / total_ == before * 10 / total_) return;
  fmt::print(stderr, "{}: {}/{}{}{}\n", label_, done_, total_, note.empty() ? "" : " ", note);
}

void Progress::draw_bar(std::string_view note) {
  constexpr auto kRefresh = std::chrono::milliseconds(50);
  constexpr int64_t kWidth = 30;
  constexpr size_t kLongestNote = 40;  // a line that wraps can't be redrawn
  const auto now = std::chrono::steady_clock::now();
  if (now - drawn_ < kRefresh && done_ < total_) return;
  drawn_ = now;
  const auto full = static_cast<size_t>(done_ * kWidth / total_);
  fmt::print(stderr, "\r{} [{}{}{}{}] {}/{} {}\x1b[K", label_, color_ ? "\x1b[32m" : "", std::string(full, '#'),
             color_ ? "\x1b[0m" : "", std::string(kWidth - full, '.'), done_, total_, note.substr(0, kLongestNote));
  std::fflush(stderr);
}

void check_writable(const std::string& path) {
  if (path != "-") veloxquant::check_writable(path);
}

void write_json(const std::string& path, const nlohmann::ordered_json& rows) {
  const nlohmann::ordered_json document = {{"schema_version", 1}, {"rows", rows}};
  const std::string text = document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
  if (path == "-") return print(text);
  write_file(path, text);
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

}  // namespace veloxquant::cli
