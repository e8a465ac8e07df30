#include "check.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>

#include "cli/output.h"
#include "ggml_attention.h"

namespace veloxquant::bench {
namespace {

constexpr int kHeadDim = 64, kTokens = 512;

/// Relative L2 that rounding explains on Gaussian rows, with room to spare; rows of an unrelated sequence give 1.4.
/// Methods with options may round as roughly as they like.
double tolerance(const std::string& name) {
  static const std::map<std::string, double> known = {
      {"ggml f16", 0.01}, {"f16", 0.01},       {"ggml q8_0", 0.03}, {"int8", 0.03},      {"ggml q4_0", 0.25},
      {"affine4", 0.25},  {"codebook4", 0.25}, {"codebook3", 0.5},  {"codebook2", 0.75}, {"affine2", 0.9}};
  const auto it = known.find(name);
  return it == known.end() ? std::numeric_limits<double>::infinity() : it->second;
}

double distance(const std::vector<float>& x, const std::vector<float>& reference) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double difference = double{x[i]} - double{reference[i]};
    error += difference * difference;
    norm += double{reference[i]} * double{reference[i]};
  }
  return std::sqrt(error / norm);
}

std::vector<float> ggml_output(const Workload& workload, Op op, GgmlType type, GgmlLayout layout) {
  GgmlAttention attention(workload, type, layout, kTokens, queries_of(op), kKvHeads, 0);
  attention.use_threads(1);
  attention.call();
  return attention.output();
}

std::vector<float> our_output(const Workload& workload, Op op, const Candidate& candidate) {
  StoredAttention attention(workload, candidate, kTokens, queries_of(op), 0);
  attention.call();
  return attention.output();
}

}  // namespace

std::string check_agreement(const std::vector<Candidate>& candidates) {
  const Workload workload(kHeadDim);
  constexpr Op kOps[] = {Op::decode, Op::prefill};
  std::vector<std::vector<float>> reference;
  for (const Op op : kOps) reference.push_back(ggml_output(workload, op, GgmlType::f16, GgmlLayout::contiguous));
  cli::Table table({{"relative distance from ggml f16"}, {""}, {"decode", true}, {"prefill", true}});

  const auto compare = [&](const std::string& name, const std::string& kind, const auto& output_of) {
    std::vector<std::string> cells = {name, kind};
    for (size_t i = 0; i < std::size(kOps); ++i) {
      const double off = distance(output_of(kOps[i]), reference[i]);
      if (!(off <= tolerance(name))) {
        throw std::runtime_error(
            fmt::format("{}, {} {}: the output's relative distance from that of ggml f16 is "
                        "{:.3g}, rounding explains {:.3g}",
                        to_string(kOps[i]), name, kind, off, tolerance(name)));
      }
      cells.push_back(fmt::format("{:.5f}", off));
    }
    table.add(std::move(cells));
  };
  for (const GgmlType type : kGgmlTypes) {
    for (const GgmlLayout layout : kGgmlLayouts) {
      compare(fmt::format("ggml {}", to_string(type)), to_string(layout),
              [&](Op op) { return ggml_output(workload, op, type, layout); });
    }
  }
  for (const Candidate& candidate : candidates) {
    compare(candidate.codec, candidate.arithmetic, [&](Op op) { return our_output(workload, op, candidate); });
  }
  return table.text();
}

}  // namespace veloxquant::bench
