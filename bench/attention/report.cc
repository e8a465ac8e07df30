#include "report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <thread>

#include "cli/output.h"
#include "core/text.h"
#include "kernels/instruction_set.h"

namespace veloxquant::bench {
namespace {

using nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;

/// Four digits are more than the times deserve.
ordered_json number(std::optional<double> x) {
  if (!x) return nullptr;
  return std::stod(fmt::format("{:.4g}", *x));
}

std::string times(std::optional<double> x) { return x ? fmt::format("{:.2f}", *x) : "-"; }

}  // namespace

std::string table_text(const std::vector<Result>& results) {
  cli::Table table({{"codec"},
                    {"arithmetic"},
                    {"ms", true},
                    {"ns/row", true},
                    {"GB/s", true},
                    {"% of stream", true},
                    {"x ggml f16", true},
                    {"x q8_0", true},
                    {"x q4_0", true}});
  for (const Result& r : results) {
    table.add({r.codec, r.arithmetic, fmt::format("{:.3f}", r.ms),
               fmt::format("{:.2f}", r.ms * 1e6 / r.tokens / kKvHeads), fmt::format("{:.2f}", r.gb_per_s),
               fmt::format("{:.1f}", r.stream_percent), times(r.ratio[0]), times(r.ratio[1]), times(r.ratio[2])});
  }
  return table.text();
}

std::string json_text(const std::vector<Result>& results) {
  ordered_json rows = ordered_json::array();
  for (const Result& r : results) {
    if (r.yardstick) continue;
    rows.push_back({{"op", to_string(r.op)},
                    {"codec", r.codec},
                    {"arithmetic", r.arithmetic},
                    {"head_dim", r.head_dim},
                    {"tokens", r.tokens},
                    {"threads", r.threads},
                    {"ms", number(r.ms)},
                    {"gb_per_s", number(r.gb_per_s)},
                    {"stream_percent", number(r.stream_percent)},
                    {"ratio_ggml_f16", number(r.ratio[0])},
                    {"ratio_ggml_q8_0", number(r.ratio[1])},
                    {"ratio_ggml_q4_0", number(r.ratio[2])}});
  }
  const ordered_json document = {{"schema_version", kSchemaVersion},
                                 {"computer", computer_text()},
                                 {"instruction_set", kernels::instruction_set()},
                                 {"rows", rows}};
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace) + '\n';
}

std::string computer_text() {
  std::ifstream file("/proc/cpuinfo");
  std::string name = "unknown processor";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    name = trimmed(std::string_view(line).substr(line.find(':') + 1));
    break;
  }
  return fmt::format("{}, {} threads", name, std::thread::hardware_concurrency());
}

}  // namespace veloxquant::bench
