// veloxquant replay: captured tensors of a real model through methods, against exact attention.
//
// Prefill 1024 tokens (384 where fewer than 1152 were captured) in calls of 256, then 128 single steps. After each step
// the layer's output o is compared with exact attention o* over all tokens so far:
//   error = mean over steps, query heads and layers of |o - o*|^2 / |o*|^2
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "cli/app.h"
#include "core/text.h"
#include "io/capture.h"
#include "kernels/kernels.h"
#include "veloxquant/cache.h"
#include "veloxquant/errors.h"

namespace veloxquant::cli {
namespace {

using nlohmann::ordered_json;

constexpr int kSteps = 128;
constexpr int kVectorSteps = 16;

struct Arguments {
  std::string folder, ways = "step,update_and_fetch";
  std::optional<std::string> methods, seeds, json;
};

enum class Way : uint8_t { step, update_and_fetch };
constexpr std::string_view to_string(Way way) { return way == Way::step ? "step" : "update_and_fetch"; }

struct Call {
  Range tokens;
  Phase phase;
};

std::vector<Call> protocol(int tokens) {
  constexpr int kPrefill = 1024, kShortPrefill = 384, kChunk = 256;
  const int prefill = tokens >= kPrefill + kSteps ? kPrefill : kShortPrefill;
  if (tokens < prefill + kSteps) {
    throw FormatError(fmt::format("{} tokens were captured, replay needs {} at least", tokens, kShortPrefill + kSteps));
  }
  std::vector<Call> calls;
  for (int t = 0; t < prefill; t += kChunk) {
    const int end = std::min(t + kChunk, prefill);
    calls.push_back({{t, end}, end == prefill ? Phase::prefill_last : Phase::prefill_more});
  }
  for (int t = prefill; t < prefill + kSteps; ++t) calls.push_back({{t, t + 1}, Phase::decode});
  return calls;
}

/// Rows of all kv heads in f32: row r of head h starts at h * head + r * row.
struct DenseRows {
  const float* k = nullptr;
  const float* v = nullptr;
  int rows = 0;
  int64_t head_k = 0, row_k = 0, head_v = 0, row_v = 0;
};

/// Attention of one token's queries [q_heads][dim_k] over `rows`: out [q_heads][dim_v].
std::vector<float> dense_attention(const CapturedLayer& layer, const float* q, const DenseRows& rows) {
  const LayerShape& shape = layer.shape;
  const int group = shape.q_heads / shape.kv_heads;
  std::vector<float> out(static_cast<size_t>(shape.q_heads) * static_cast<size_t>(shape.dim_v));
  std::vector<float> weight(static_cast<size_t>(group) * static_cast<size_t>(rows.rows));
  for (int h = 0; h < shape.kv_heads; ++h) {
    kernels::dot_rows(group, rows.rows, shape.dim_k, q + int64_t{h} * group * shape.dim_k, shape.dim_k,
                      rows.k + h * rows.head_k, rows.row_k, weight.data(), rows.rows);
    kernels::scale(weight.data(), static_cast<int64_t>(weight.size()), layer.scale);
    if (layer.softcap > 0) kernels::softcap(weight.data(), static_cast<int>(weight.size()), layer.softcap);
    for (int i = 0; i < group; ++i) {
      float* row = weight.data() + int64_t{i} * rows.rows;
      float max = -std::numeric_limits<float>::infinity();
      const float sum = kernels::softmax_step(row, rows.rows, &max);
      kernels::scale(row, rows.rows, 1 / sum);
    }
    kernels::multiply_accumulate(group, shape.dim_v, rows.rows, weight.data(), rows.rows, 1, rows.v + h * rows.head_v,
                                 rows.row_v, out.data() + int64_t{h} * group * shape.dim_v, shape.dim_v);
  }
  return out;
}

const float* query_of(const CapturedLayer& layer, int token) {
  return layer.q.data() + int64_t{token} * layer.shape.q_heads * layer.shape.dim_k;
}

/// What every method is compared with: one output a decode step, shared by all of them.
std::vector<std::vector<float>> exact_outputs(const CapturedLayer& layer, const std::vector<Call>& calls) {
  const int64_t dim_k = layer.shape.dim_k, dim_v = layer.shape.dim_v, heads = layer.shape.kv_heads;
  std::vector<std::vector<float>> outputs;
  for (const Call& call : calls) {
    if (call.phase != Phase::decode) continue;
    const DenseRows rows = {layer.k.data(), layer.v.data(), call.tokens.end, dim_k,
                            dim_k * heads,  dim_v,          dim_v * heads};
    outputs.push_back(dense_attention(layer, query_of(layer, call.tokens.begin), rows));
  }
  return outputs;
}

/// Mean over query heads of |out - exact|^2 / |exact|^2.
double relative_error(const std::vector<float>& out, const std::vector<float>& exact, int heads) {
  const size_t dim = exact.size() / static_cast<size_t>(heads);
  double mean = 0;
  for (size_t begin = 0; begin < exact.size(); begin += dim) {
    double difference = 0, norm = 0;
    for (size_t i = begin; i < begin + dim; ++i) {
      const double d = static_cast<double>(out[i]) - exact[i];
      difference += d * d;
      norm += static_cast<double>(exact[i]) * exact[i];
    }
    mean += norm > 0 ? difference / norm : (difference > 0 ? 1 : 0);
  }
  return mean / heads;
}

/// Steps of a method: caches of single vectors take a few, as in the figures of the original system.
int steps_of(const MethodDef& def) { return def.standalone ? kVectorSteps : kSteps; }

std::vector<float> call_output(KVCache& cache, Way way, const CapturedLayer& layer, const Call& call) {
  const Tensor k = layer.rows(Side::key, call.tokens), v = layer.rows(Side::value, call.tokens);
  const CallInfo info = {.phase = call.phase, .valid = {}};
  if (way == Way::step) {
    AttendIn in;
    in.q = layer.queries(call.tokens);
    in.scale = layer.scale;
    in.softcap = layer.softcap;
    if (!cache.method().def->standalone) return cache.step(in, k, v, info);
    cache.append(k, v, info);
    cache.commit();  // such a cache attends to the stored form of all rows
    return call.phase == Phase::decode ? cache.attend(in) : std::vector<float>();
  }
  const KVCache::Fetched rows = cache.update_and_fetch(k, v, info);
  if (call.phase != Phase::decode) return {};
  const int64_t dim_k = layer.shape.dim_k, dim_v = layer.shape.dim_v;
  return dense_attention(layer, query_of(layer, call.tokens.begin),
                         {rows.k.data(), rows.v.data(), rows.rows, dim_k * rows.rows, dim_k, dim_v * rows.rows, dim_v});
}

struct Layer {
  CapturedLayer tensors;
  std::vector<Call> calls;
  std::vector<std::vector<float>> exact;
};

std::vector<Layer> prepare(const std::string& folder) {
  std::vector<Layer> layers;
  for (CapturedLayer& tensors : read_capture(folder)) {
    std::vector<Call> calls = protocol(tensors.tokens);
    std::vector<std::vector<float>> exact = exact_outputs(tensors, calls);
    layers.push_back({std::move(tensors), std::move(calls), std::move(exact)});
  }
  return layers;
}

/// One line of the report.
struct Row {
  std::string method;
  Way way;
  int64_t seed = 0;
  double error = 0;
  std::vector<std::pair<int, double>> error_by_layer;
  size_t resident_bytes = 0, used_bytes = 0, fp16_bytes = 0;
  int rows_kept = 0;

  double bits_per_element() const {
    return 16.0 * static_cast<double>(resident_bytes) / static_cast<double>(fp16_bytes);
  }
};

double replay_layer(KVCache& cache, Way way, const Layer& layer) {
  double sum = 0;
  size_t step = 0;
  for (const Call& call : layer.calls) {
    if (step == static_cast<size_t>(steps_of(*cache.method().def))) break;
    const std::vector<float> out = call_output(cache, way, layer.tensors, call);
    if (call.phase == Phase::decode) sum += relative_error(out, layer.exact[step++], layer.tensors.shape.q_heads);
  }
  return sum / static_cast<double>(step);
}

Row replay(const MethodSpec& spec, Way way, int64_t seed, const std::vector<Layer>& layers, Progress& progress) {
  Row row{.method = spec.text, .way = way, .seed = seed, .error_by_layer = {}};
  for (const Layer& layer : layers) {
    const LayerShape& shape = layer.tensors.shape;
    KVCache cache(spec, shape);
    const double error = replay_layer(cache, way, layer);
    row.error_by_layer.emplace_back(shape.layer, error);
    row.error += error / static_cast<double>(layers.size());
    row.resident_bytes += cache.nbytes();
    row.used_bytes += cache.used_bytes();
    row.fp16_bytes += 2 * static_cast<size_t>(cache.offset()) * static_cast<size_t>(shape.kv_heads) *
                      static_cast<size_t>(shape.dim_k + shape.dim_v);
    row.rows_kept = cache.size();
    progress.advance(1, fmt::format("{} seed {}", spec.def->name, seed));
  }
  return row;
}

ordered_json json_of(const Row& row) {
  ordered_json by_layer = ordered_json::object();
  for (const auto& [layer, error] : row.error_by_layer) by_layer[std::to_string(layer)] = error;
  return {{"method", row.method},
          {"way", to_string(row.way)},
          {"seed", row.seed},
          {"error", row.error},
          {"error_by_layer", by_layer},
          {"resident_bytes", row.resident_bytes},
          {"used_bytes", row.used_bytes},
          {"bits_per_element", row.bits_per_element()},
          {"fp16_bytes", row.fp16_bytes},
          {"rows_kept", row.rows_kept}};
}

/// One line for all seeds of a method and way.
std::vector<std::string> cells_of(std::span<const Row> rows) {
  double mean = 0, low = rows[0].error, high = rows[0].error;
  for (const Row& row : rows) {
    mean += row.error / static_cast<double>(rows.size());
    low = std::min(low, row.error);
    high = std::max(high, row.error);
  }
  const Row& row = rows[0];
  const bool several = rows.size() > 1;
  return {row.method,
          std::string(to_string(row.way)),
          several ? fmt::format("{}..{}", row.seed, rows.back().seed) : fmt::format("{}", row.seed),
          fmt::format("{:.3g}", mean),
          several ? fmt::format("{:.3g}..{:.3g}", low, high) : "",
          fmt::format("{:.3f}", row.bits_per_element()),
          bytes_text(static_cast<double>(row.resident_bytes)),
          fmt::format("{:.2f}x", static_cast<double>(row.fp16_bytes) / static_cast<double>(row.resident_bytes))};
}

void print_table(std::span<const Row> rows, size_t seeds) {
  const bool several = seeds > 1;
  Table table({{"method"},
               {"way"},
               {several ? "seeds" : "seed", true},
               {several ? "mean error" : "error", true},
               {several ? "min..max" : "", true},
               {"bits/element", true},
               {"resident", true},
               {"vs fp16", true}});
  for (size_t i = 0; i < rows.size(); i += seeds) table.add(cells_of(rows.subspan(i, seeds)));
  print(table.text());
}

/// All methods of the list, with the problems of all of them in one error.
std::vector<MethodSpec> methods_of(const std::optional<std::string>& list) {
  std::vector<std::string> texts, problems;
  if (list) {
    texts = split_list(*list);
  } else {
    for (const MethodDef* def : built_methods()) texts.emplace_back(def->name);
  }
  std::vector<MethodSpec> specs;
  for (const std::string& text : texts) {
    try {
      specs.push_back(parse_method(text));
    } catch (const QuantizerConfigError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  }
  if (!problems.empty()) throw QuantizerConfigError(std::move(problems));
  return specs;
}

std::vector<Way> ways_of(const std::string& list) {
  static const std::array<std::string, 2> kNames = {"step", "update_and_fetch"};
  std::vector<Way> ways;
  for (const std::string& name : split_list(list)) {
    const auto it = std::ranges::find(kNames, name);
    if (it == kNames.end()) {
      const std::string near = nearest(name, kNames);
      throw UsageError(fmt::format("--ways: got {}, allowed step | update_and_fetch{}", quote(name),
                                   near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
    }
    ways.push_back(it == kNames.begin() ? Way::step : Way::update_and_fetch);
  }
  return ways;
}

/// Caches of single vectors give no rows out.
std::vector<Way> ways_with(const MethodSpec& spec, std::vector<Way> ways) {
  if (spec.def->standalone) std::erase(ways, Way::update_and_fetch);
  return ways;
}

/// The seeds to run each method with: those of --seeds, or its own.
std::vector<std::vector<int64_t>> seeds_of(const std::optional<std::string>& text, std::span<const MethodSpec> specs) {
  std::vector<std::vector<int64_t>> seeds;
  for (const MethodSpec& spec : specs) {
    if (!text) {
      seeds.push_back({spec.options.integer64("seed")});
    } else if (spec.options.explicitly_set("seed")) {
      throw UsageError(fmt::format("--seeds and a seed in {} exclude each other", quote(spec.text)));
    } else {
      seeds.push_back(parse_seeds(*text));
    }
  }
  return seeds;
}

void check_methods(std::span<const MethodSpec> specs, std::span<const Layer> layers) {
  std::vector<std::string> problems;
  for (const MethodSpec& spec : specs) {
    for (const Layer& layer : layers) {
      try {
        check_method(spec, layer.tensors.shape);
      } catch (const QuantizerConfigError& error) {
        problems.insert(problems.end(), error.problems().begin(), error.problems().end());
      }
    }
  }
  if (!problems.empty()) throw QuantizerConfigError(std::move(problems));
}

void run(const Arguments& arguments) {
  std::vector<MethodSpec> specs = methods_of(arguments.methods);
  const std::vector<Way> ways = ways_of(arguments.ways);
  const std::vector<std::vector<int64_t>> seeds = seeds_of(arguments.seeds, specs);
  if (arguments.json) check_writable(*arguments.json);
  const std::vector<Layer> layers = prepare(arguments.folder);
  check_methods(specs, layers);

  std::vector<Row> rows;
  size_t runs = 0;
  for (const MethodSpec& spec : specs) runs += ways_with(spec, ways).size() * seeds[0].size();
  {
    Progress progress("replay", static_cast<int64_t>(runs * layers.size()));
    for (size_t m = 0; m < specs.size(); ++m) {
      for (const Way way : ways_with(specs[m], ways)) {
        for (const int64_t seed : seeds[m]) {
          specs[m].options.set("seed", seed);
          rows.push_back(replay(specs[m], way, seed, layers, progress));
        }
      }
    }
  }
  if (arguments.json) {
    ordered_json out = ordered_json::array();
    for (const Row& row : rows) out.push_back(json_of(row));
    write_json(*arguments.json, out);
  }
  if (arguments.json != "-") print_table(rows, seeds[0].size());
}

}  // namespace

void add_replay(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* sub = app.add_subcommand("replay", "Measure the attention error and bytes of methods on captured tensors");
  sub->add_option("folder", arguments->folder, "Folder with meta.json and layerNN_{q,k,v}.npy")->required();
  sub->add_option("--methods", arguments->methods, "Methods, with commas between them (default: all)");
  sub->add_option("--ways", arguments->ways, "step, update_and_fetch or both")->capture_default_str();
  sub->add_option("--seeds", arguments->seeds, "Seeds A..B or one (default: that of the method, 42)");
  sub->add_option("--json", arguments->json, "Write every row to this file; - is standard output");
  sub->footer(
      "error: mean over steps, query heads and layers of |o - o_exact|^2 / |o_exact|^2. Methods that store single\n"
      "vectors take 16 steps in place of 128 and have no update_and_fetch.\n"
      "Examples:\n"
      "  veloxquant replay captured/\n"
      "  veloxquant replay captured/ --methods 'exact,kivi(bits=4,group=64)' --ways step\n"
      "  veloxquant replay captured/ --methods turboquant_rvq --seeds 42..61 --json rows.json");
  sub->callback([arguments] { run(*arguments); });
}

}  // namespace veloxquant::cli
