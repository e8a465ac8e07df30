// What a run leaves: tables for people, rows for programs.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "workload.h"

namespace veloxquant::bench {

struct Result {
  Op op;
  std::string codec;       ///< or "ggml f16" ...
  std::string arithmetic;  ///< of ggml: how the heads lie
  bool yardstick = false;  ///< only in the tables
  int head_dim, tokens, threads;
  double ms = 0;
  double gb_per_s = 0;                         ///< of packed bytes; encode: of fp16 input
  double stream_percent = 0;                   ///< of the memory stream in the same rounds
  std::array<std::optional<double>, 3> ratio;  ///< times faster than ggml over f16, q8_0, q4_0; contiguous heads
};

std::string table_text(const std::vector<Result>& results);
/// {schema_version, computer, instruction_set, rows} without yardsticks.
std::string json_text(const std::vector<Result>& results);
/// The processor's name and how many there are.
std::string computer_text();

}  // namespace veloxquant::bench
