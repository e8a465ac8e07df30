// What the methods' specifications promise on captured tensors. Figures, not safety: the sanitizer runs leave this
// folder out.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <string>

#include "cli/command.h"

namespace veloxquant {
namespace {

using namespace testing_command;
using nlohmann::json;

/// The rows of the captured tensors of SmolLM2, or nothing when they are not here.
json captured_rows(std::vector<std::string> arguments) {
  const std::string folder = VQ_SHARED_DIR "/data/smollm2_135m";
  if (!std::filesystem::exists(folder)) return {};
  arguments.insert(arguments.begin(), {"replay", folder, "--json", "-"});
  const Result result = run(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  return json::parse(result.out).at("rows");
}

#define SKIP_WITHOUT_TENSORS(rows) \
  if (rows.empty()) GTEST_SKIP() << "no captured tensors in " VQ_SHARED_DIR "/data/smollm2_135m"

TEST(Quality, kivi_is_as_good_as_specified) {
  const json rows = captured_rows({"--methods", "kivi,kivi(flush_rule=aligned_window),kivi(bits=4)", "--ways", "step"});
  SKIP_WITHOUT_TENSORS(rows);
  EXPECT_LE(rows[0].at("error"), 0.107);
  EXPECT_LE(rows[1].at("error"), 0.105);
  EXPECT_LE(rows[1].at("bits_per_element"), 4.58);
  EXPECT_LE(rows[2].at("error"), 0.004);
  for (const json& row : rows) EXPECT_GE(row.at("error"), 0.002) << "too good to be quantised: " << row;
}

TEST(Quality, turboquant_rvq_is_as_good_as_specified) {
  const json rows = captured_rows({"--methods", "turboquant_rvq", "--ways", "step", "--seeds", "42..61"});
  SKIP_WITHOUT_TENSORS(rows);
  double mean = 0;
  for (const json& row : rows) mean += row.at("error").get<double>() / 20;
  EXPECT_EQ(rows.size(), 20u);
  EXPECT_LE(mean, 0.015);
  EXPECT_GE(mean, 0.008);
  EXPECT_LE(rows[0].at("bits_per_element"), 10.43);
}

// Means over rotations: single draws scatter by a third. Bytes by the formula, as the original system claims them.
TEST(Quality, vector_caches_beat_the_original_system) {
  const json rows = captured_rows({"--methods",
                                   "turboquant_mse,turboquant_prod,qjl,turboquant_mse(bits=4),"
                                   "turboquant_prod(sketch=orthogonal),qjl(jl_dim=256)",
                                   "--seeds", "42..61"});
  SKIP_WITHOUT_TENSORS(rows);
  struct Limit {
    double error, bits;  // of the original system, where it has the method
  };
  const Limit limits[] = {{0.408, 5.375}, {2.893, 5.5}, {5.050, 8.25}, {0.02, 6.375}, {0.9, 5.5}, {0.45, 6.375}};
  std::map<std::string, double> mean;
  for (const json& row : rows) mean[row.at("method").get<std::string>()] += row.at("error").get<double>() / 20;
  ASSERT_EQ(mean.size(), std::size(limits));
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto method = rows[i].at("method").get<std::string>();
    const size_t index = i / 20;  // rows come method by method
    EXPECT_LE(mean.at(method), limits[index].error) << method;
    EXPECT_GE(mean.at(method), limits[index].error / 5) << method << ": too good to be quantised";
    EXPECT_EQ(rows[i].at("way"), "step");
    const double bits = 16 * rows[i].at("used_bytes").get<double>() / rows[i].at("fp16_bytes").get<double>();
    EXPECT_LE(bits, limits[index].bits) << method;
  }
}

TEST(Quality, evictors_on_true_queries_beat_the_plain_window) {
  const json rows =
      captured_rows({"--methods", "streaming_llm,h2o(budget=513),tova(budget=513),snapkv,snapkv+kivi(bits=4),knorm"});
  SKIP_WITHOUT_TENSORS(rows);
  const auto error = [&](size_t method, bool fetched) { return rows[2 * method + (fetched ? 1 : 0)].at("error"); };
  EXPECT_NEAR(error(0, false), 0.0886, 1e-3);
  EXPECT_LE(error(1, false), 0.06);
  EXPECT_LE(error(2, false), 0.045);
  EXPECT_LE(error(3, false), 0.02);
  EXPECT_LE(error(4, false), 0.025);
  // Keys in place of queries: no worse than the original system, which has nothing else.
  EXPECT_LE(error(1, true), 0.1258);
  EXPECT_LE(error(2, true), 0.5160);
  EXPECT_LE(error(3, true), 0.2498);
  EXPECT_LE(error(5, true), 0.1935);
  EXPECT_EQ(rows[2].at("rows_kept"), 513);
}

TEST(Quality, kivi_sink_is_as_good_as_specified) {
  const json rows = captured_rows({"--methods",
                                   "kivi_sink(flush_rule=aligned_window),kivi(flush_rule=aligned_window),"
                                   "kivi_sink(flush_rule=aligned_window,sink_signal=key_norm)",
                                   "--ways", "step"});
  SKIP_WITHOUT_TENSORS(rows);
  EXPECT_LE(rows[0].at("error"), 0.05) << "the sinks of this model have small keys";
  EXPECT_LE(rows[0].at("bits_per_element"), 4.74);
  EXPECT_LT(rows[0].at("error"), rows[1].at("error"));
  EXPECT_LE(rows[2].at("error"), 0.101);
}

TEST(Quality, the_ways_agree_to_rounding) {
  // Without scores from queries there is one result.
  const json rows = captured_rows({"--methods", "exact,kivi,kivi_sink,turboquant_rvq,knorm,streaming_llm"});
  SKIP_WITHOUT_TENSORS(rows);
  for (size_t i = 0; i < rows.size(); i += 2) {
    const double step = rows[i].at("error"), fetched = rows[i + 1].at("error");
    EXPECT_NEAR(fetched, step, 1e-3 * step + 1e-10) << rows[i].at("method");
  }
}

}  // namespace
}  // namespace veloxquant
