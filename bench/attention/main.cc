// Attention over packed caches beside ggml's flash attention over its own, and the memory stream of the same minutes.
//
// Rows come from memory, not from a cache: a contestant has 128 MiB of copies for decode, all others have their turn
// between two of its samples, and within a sample half a gigabyte is read off the clock before a copy comes back. Times
// are CPU time of the thread (wall time of several), medians over rounds in which every contestant takes one sample of
// at least 0.1 s.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "caches.h"
#include "check.h"
#include "cli/app.h"
#include "cli/output.h"
#include "contest.h"
#include "ggml_attention.h"
#include "io/file.h"
#include "kernels/instruction_set.h"
#include "memory_stream.h"
#include "report.h"
#include "veloxquant/errors.h"

namespace veloxquant::bench {
namespace {

constexpr double kSeconds = 570, kQuickSeconds = 110;  // ten minutes and two, with room for a last round
constexpr size_t kDecodeCopies = size_t{128} << 20;
constexpr size_t kPrefillCopies = size_t{16} << 20;  // a store is read once for many queries: caches decide little
constexpr double kMemoryShare = 0.7;                 // of what the system could give
constexpr int kEncodeTokens = 8192;

struct Arguments {
  bool quick = false;
  std::string json, codecs;
  std::vector<int> threads = {1}, dims;
  std::vector<std::string> ops = {"decode", "prefill", "encode"}, arithmetic = {"2term", "int8"};
};

/// One table, or one for each number of threads.
struct Cell {
  Op op;
  int dim, tokens;
  double weight() const;  ///< share of the time
};

double Cell::weight() const {
  const double rounds = op == Op::encode ? 1 : op == Op::prefill && tokens < 8192 ? 1.5 : tokens < 32768 ? 2 : 3;
  return rounds * (1 + dim / 128.0);
}

std::vector<int> tokens_of(Op op, bool quick) {
  if (op == Op::encode) return {kEncodeTokens};
  if (op == Op::prefill) return quick ? std::vector<int>{8192} : std::vector<int>{2048, 8192};
  return quick ? std::vector<int>{32768} : std::vector<int>{1024, 8192, 32768};
}

std::vector<int> dims_of(const Arguments& args) {
  if (!args.dims.empty()) return args.dims;
  return args.quick ? std::vector<int>{128} : std::vector<int>{64, 128, 256};
}

std::vector<Cell> cells_of(const Arguments& args) {
  std::vector<Cell> cells;
  for (const int dim : dims_of(args)) {
    for (const Op op : {Op::decode, Op::prefill, Op::encode}) {
      if (std::ranges::find(args.ops, to_string(op)) == args.ops.end()) continue;
      for (const int tokens : tokens_of(op, args.quick)) cells.push_back({op, dim, tokens});
    }
  }
  return cells;
}

/// Shares out what is left of the run's time by the weights of the cells that are left.
class Schedule {
 public:
  Schedule(const std::vector<Cell>& cells, double seconds)
      : end_(WallClock::now() + std::chrono::milliseconds(std::lround(seconds * 1e3))) {
    for (const Cell& cell : cells) weight_ += cell.weight();
  }

  /// When the next cell should be done.
  WallClock::time_point next(const Cell& cell) {
    const auto now = WallClock::now();
    const double share = cell.weight() / weight_;
    weight_ -= cell.weight();
    return now + std::chrono::duration_cast<WallClock::duration>((end_ - now) * share);
  }

 private:
  WallClock::time_point end_;
  double weight_ = 0;
};

/// The contestants of one cell, and what their times mean.
class Contest {
 public:
  Contest(const Cell& cell, const std::vector<Candidate>& candidates, MemoryStream& stream)
      : cell_(cell), workload_(cell.dim), evict_(&stream) {
    enter(stream);
    if (cell.op == Op::encode) {
      std::string before;  // encoding is the same for all arithmetics
      for (const Candidate& candidate : candidates) {
        if (std::exchange(before, candidate.codec) != candidate.codec) add_encoding(candidate);
      }
    } else {
      choose_copies(candidates.size());
      add_yardsticks();
      for (const Candidate& candidate : candidates) add_attention(candidate);
    }
  }

  /// A table on stdout, its rows to the end of `results`.
  void run(int threads, WallClock::time_point deadline, std::vector<Result>& results) {
    const bool decode = cell_.op == Op::decode;
    const int rounds = compete(entries_, {.deadline = deadline,
                                          .least_rounds = decode ? 3 : 1,
                                          .most_rounds = 15,
                                          .warm_up = decode,
                                          .threads = threads,
                                          .evict = decode ? evict_ : nullptr});
    std::vector<Result> table;
    for (size_t i = 0; i < things_.size(); ++i) table.push_back(result_of(i, threads));
    cli::print(title(threads, rounds) + table_text(table) + "\n");
    cli::flush_output();
    results.insert(results.end(), table.begin(), table.end());
  }

 private:
  /// Who stands behind entry i + 1; entry 0 is the stream.
  struct Thing {
    std::unique_ptr<Contestant> contestant;
    std::string name, kind;
    double bytes;      ///< that the yardstick of GB/s counts
    double calls = 1;  ///< that make up the whole layer
    bool yardstick = false;
  };

  Entry& enter(Contestant& contestant) { return entries_.emplace_back(Entry{&contestant, false, {}}); }
  Entry& add(Thing thing) {
    things_.push_back(std::move(thing));
    return enter(*things_.back().contestant);
  }

  void choose_copies(size_t candidates) {
    copies_ = cell_.op == Op::decode ? kDecodeCopies : kPrefillCopies;
    const auto contestants = static_cast<double>(candidates + 2 * std::size(kGgmlTypes));
    const double memory = kMemoryShare * static_cast<double>(available_memory());
    if (memory > 0) copies_ = std::min(copies_, static_cast<size_t>(memory / contestants));
  }

  // The first three are those that ratios refer to.
  void add_yardsticks() {
    for (const GgmlType type : kGgmlTypes) add_yardstick(type, GgmlLayout::contiguous);
    if (cell_.op == Op::prefill) return;
    for (const GgmlType type : kGgmlTypes) add_yardstick(type, GgmlLayout::interleaved);
  }

  // Prefill over quantised types takes seconds: one kv head stands for all, in a single round.
  void add_yardstick(GgmlType type, GgmlLayout layout) {
    const bool prefill = cell_.op == Op::prefill;
    const int heads = prefill ? 1 : kKvHeads;
    auto ggml =
        std::make_unique<GgmlAttention>(workload_, type, layout, cell_.tokens, queries_of(cell_.op), heads, copies_);
    const auto bytes = static_cast<double>(ggml->bytes());
    add({.contestant = std::move(ggml),
         .name = fmt::format("ggml {}", to_string(type)),
         .kind = to_string(layout),
         .bytes = bytes,
         .calls = static_cast<double>(kKvHeads) / heads,
         .yardstick = true})
        .once = prefill && type != GgmlType::f16;
  }

  void add_attention(const Candidate& candidate) {
    auto ours = std::make_unique<StoredAttention>(workload_, candidate, cell_.tokens, queries_of(cell_.op), copies_);
    const auto bytes = static_cast<double>(ours->packed_bytes());
    add({.contestant = std::move(ours), .name = candidate.codec, .kind = candidate.arithmetic, .bytes = bytes});
  }

  void add_encoding(const Candidate& candidate) {
    auto ours = std::make_unique<Encoding>(workload_, candidate, cell_.tokens);
    const auto bytes = static_cast<double>(ours->input_bytes());
    add({.contestant = std::move(ours), .name = candidate.codec, .kind = candidate.arithmetic, .bytes = bytes});
  }

  double stream_gb_per_s() const { return static_cast<double>(MemoryStream::kBytes) / seconds_of(entries_[0]) / 1e9; }

  Result result_of(size_t i, int threads) const {
    const Thing& thing = things_[i];
    const Entry& entry = entries_[i + 1];
    Result result{.op = cell_.op,
                  .codec = thing.name,
                  .arithmetic = thing.kind,
                  .yardstick = thing.yardstick,
                  .head_dim = cell_.dim,
                  .tokens = cell_.tokens,
                  .threads = threads,
                  .ms = seconds_of(entry) * thing.calls * 1e3,
                  .gb_per_s = thing.bytes / seconds_of(entry) / 1e9,
                  .ratio = {}};
    result.stream_percent = 100 * result.gb_per_s / stream_gb_per_s();
    for (size_t y = 0; y < result.ratio.size() && cell_.op != Op::encode; ++y) {
      result.ratio[y] = ratio(entry, entries_[y + 1]) * things_[y].calls / thing.calls;
    }
    return result;
  }

  std::string title(int threads, int rounds) const {
    const std::string copies = cell_.op == Op::encode ? "" : fmt::format(", {} MiB of copies each", copies_ >> 20);
    return fmt::format("{}, head size {}, {} tokens, {} thread{}: memory stream {:.1f} GB/s, {} round{}{}\n",
                       to_string(cell_.op), cell_.dim, cell_.tokens, threads, threads == 1 ? "" : "s",
                       stream_gb_per_s(), rounds, rounds == 1 ? "" : "s", copies);
  }

  Cell cell_;
  Workload workload_;
  Contestant* evict_;
  size_t copies_ = 0;
  std::vector<Thing> things_;
  std::vector<Entry> entries_;
};

std::vector<Candidate> chosen_candidates(const Arguments& args) {
  std::vector<Candidate> candidates;
  for (const std::string& codec : args.codecs.empty() ? default_codecs() : cli::split_list(args.codecs)) {
    for (const Candidate& candidate : candidates_of(codec, args.arithmetic)) {
      for (const int dim : dims_of(args)) check_method(method_of(candidate), layer_shape(dim));
      candidates.push_back(candidate);
    }
  }
  return candidates;
}

void check_dims(const Arguments& args) {
  for (const int dim : args.dims) {
    if (dim % 32 == 0) continue;
    throw cli::UsageError(fmt::format("--dims: got {}, ggml's blocks need a multiple of 32", dim));
  }
}

void run(const Arguments& args) {
  kernels::obey_environment();
  check_dims(args);
  const std::vector<Candidate> candidates = chosen_candidates(args);
  if (!args.json.empty()) cli::check_writable(args.json);
  const std::vector<Cell> cells = cells_of(args);
  Schedule schedule(cells, args.quick ? kQuickSeconds : kSeconds);
  cli::print(fmt::format("{}, {}; ggml {}\n\n{}\n", computer_text(), kernels::instruction_set(), ggml_version_text(),
                         check_agreement(candidates)));
  cli::flush_output();
  MemoryStream stream;
  std::vector<Result> results;
  for (const Cell& cell : cells) {
    const WallClock::time_point end = schedule.next(cell);
    Contest contest(cell, candidates, stream);
    std::vector<int> threads = cell.op == Op::encode ? std::vector<int>{1} : args.threads;
    for (size_t i = 0; i < threads.size(); ++i) {
      const auto now = WallClock::now();
      contest.run(threads[i], now + (end - now) / static_cast<int>(threads.size() - i), results);
    }
  }
  if (!args.json.empty()) write_file(args.json, json_text(results));
}

void add_options(CLI::App& app, Arguments& args) {
  app.add_flag("--quick", args.quick, "Two minutes: decode at 32768 tokens, prefill at 8192, head size 128 only");
  app.add_option("--json", args.json, "Write the results of our caches to this file")->type_name("FILE");
  app.add_option("--codecs", args.codecs, "Codecs and methods, separated by commas")->type_name("LIST");
  app.add_option("--threads", args.threads, "Numbers of threads (1)")->delimiter(',')->check(CLI::Range(1, 1024));
  app.add_option("--dims", args.dims, "Head sizes, multiples of 32 (64,128,256; quick: 128)")
      ->delimiter(',')
      ->check(CLI::Range(32, 1024));
  app.add_option("--ops", args.ops, "decode, prefill, encode (all)")
      ->delimiter(',')
      ->check(CLI::IsMember({"decode", "prefill", "encode"}));
  app.add_option("--arithmetic", args.arithmetic, "float, 2term, int8 (2term,int8): of the codecs that have a choice")
      ->delimiter(',')
      ->check(CLI::IsMember({"float", "2term", "int8"}));
  app.footer(
      "Codecs: codebook4 codebook3 codebook2 affine4 affine2 int8 f16, keys and values alike; or any method.\n"
      "ns/row: time for a stored token and kv head with its four query heads. GB/s: packed bytes; encode: fp16 input.\n"
      "ggml lies contiguous (a head's rows together) or interleaved (llama.cpp's view); ratios are to contiguous.\n\n"
      "Examples:\n"
      "  bench_attention --quick\n"
      "  bench_attention --ops decode --dims 128 --codecs 'codebook4,f16,kivi(bits=4)' --threads 1,2");
}

int guarded(int argc, char** argv) {
  CLI::App app("Attention over packed caches beside ggml's flash attention, and both beside the memory's speed.",
               "bench_attention");
  Arguments args;
  add_options(app, args);
  try {
    app.parse(argc, argv);
    run(args);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : cli::kExitUsage;
  } catch (const std::invalid_argument& error) {
    cli::print_error(error.what());
    return cli::kExitUsage;
  } catch (const std::exception& error) {
    cli::print_error(error.what());
  }
  return cli::kExitFailure;
}

}  // namespace
}  // namespace veloxquant::bench

int main(int argc, char** argv) { return veloxquant::bench::guarded(argc, argv); }
