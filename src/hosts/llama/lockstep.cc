#include "hosts/llama/lockstep.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "hosts/llama/plain.h"
#include "hosts/llama/score_rules.h"
#include "hosts/llama/session.h"
#include "veloxquant/errors.h"

namespace veloxquant::llama {
namespace {

constexpr std::string_view kPlainPrefix = "llama:";
constexpr std::string_view kReference = "llama:f16";
constexpr std::string_view kPlainTypes[] = {"f16", "q8_0", "q4_0"};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Ours or llama's; both are fed the same way.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::span<const float> prefill(std::span<const Token> tokens) = 0;
  virtual std::span<const float> step(Token token) = 0;
  virtual size_t resident_bytes() = 0;
  virtual double encode_seconds() { return 0; }
};

class MethodRunner : public Runner {
 public:
  MethodRunner(LlamaHost& host, const std::string& method) : session_(host, parse_method(method)) {}
  std::span<const float> prefill(std::span<const Token> tokens) override {
    const auto logits = session_.decode(tokens, Phase::prefill_last);
    session_.caches().commit();  // the last chunk's encoding belongs to the prefill
    return logits;
  }
  double encode_seconds() override { return session_.caches().commit_seconds(); }
  std::span<const float> step(Token token) override { return session_.decode(std::span(&token, 1), Phase::decode); }
  size_t resident_bytes() override { return session_.caches().nbytes(); }

 private:
  Session session_;
};

class PlainRunner : public Runner {
 public:
  PlainRunner(LlamaHost& host, const PlainOptions& options) : run_(host, options) {}
  std::span<const float> prefill(std::span<const Token> tokens) override { return run_.decode(tokens); }
  std::span<const float> step(Token token) override { return run_.decode(std::span(&token, 1)); }
  size_t resident_bytes() override { return run_.cache_bytes(run_.position()); }

 private:
  PlainRun run_;
};

/// A runner and what was measured of it.
struct Lane {
  std::string method;
  std::unique_ptr<Runner> runner;
  std::span<const float> logits;  ///< of the newest token
  Scores scores;
  double prefill_seconds = 0;
  std::vector<double> step_seconds;
  double encode_seconds = 0;
};

bool is_plain(std::string_view method) { return method.starts_with(kPlainPrefix); }

Lane make_lane(LlamaHost& host, const std::string& method, int context) {
  if (!is_plain(method)) return {method, std::make_unique<MethodRunner>(host, method), {}, {}, 0, {}, 0};
  const std::string type = method.substr(kPlainPrefix.size());
  return {method, std::make_unique<PlainRunner>(host, PlainOptions{.type = type, .context = context}), {}, {}, 0, {},
          0};
}

Lane make_floor(LlamaHost& host, int context) {
  const PlainOptions options{.type = "f32", .flash_attention = false, .context = context};
  return {"floor", std::make_unique<PlainRunner>(host, options), {}, {}, 0, {}, 0};
}

/// The reference first, then those asked for, the floor last.
std::vector<Lane> make_lanes(LlamaHost& host, std::span<const std::string> methods, int context) {
  std::vector<Lane> lanes;
  lanes.push_back(make_lane(host, std::string(kReference), context));
  for (const std::string& method : methods) {
    if (method != kReference) lanes.push_back(make_lane(host, method, context));
  }
  lanes.push_back(make_floor(host, context));
  return lanes;
}

void predict(std::vector<Lane>& lanes, Token next) {
  const std::vector<double> reference = log_softmax(lanes.front().logits);
  for (Lane& lane : lanes) lane.scores.add(reference, log_softmax(lane.logits), next);
}

/// One token through all lanes. Each step starts with another lane, so that none is always first after the scoring.
void feed(std::vector<Lane>& lanes, Token token, size_t step) {
  for (size_t i = 0; i < lanes.size(); ++i) {
    Lane& lane = lanes[(step + i) % lanes.size()];
    const Clock::time_point start = Clock::now();
    lane.logits = lane.runner->step(token);
    lane.step_seconds.push_back(seconds_since(start));
  }
}

LockstepRow row_of(const Lane& lane, const LlamaHost& host, size_t tokens) {
  size_t elements = 0;
  for (const LayerShape& shape : host.layers()) {
    elements += static_cast<size_t>(shape.kv_heads * (shape.dim_k + shape.dim_v)) * tokens;
  }
  LockstepRow row;
  row.method = lane.method;
  row.perplexity = lane.scores.perplexity();
  row.kl_mean = lane.scores.kl_mean();
  row.top1_agreement = lane.scores.top1_agreement();
  row.resident_bytes = lane.runner->resident_bytes();
  row.bits_per_element = 8.0 * static_cast<double>(row.resident_bytes) / static_cast<double>(elements);
  row.prefill_tokens_per_s = static_cast<double>(tokens - kPredictions) / lane.prefill_seconds;
  row.encode_share = lane.encode_seconds / lane.prefill_seconds;
  row.decode_tokens_per_s = 1 / median({lane.step_seconds.end() - kTimedSteps, lane.step_seconds.end()});
  return row;
}

}  // namespace

void check_methods(std::span<const std::string> methods) {
  for (const std::string& method : methods) {
    if (std::count(methods.begin(), methods.end(), method) > 1) {
      throw QuantizerConfigError(fmt::format("{}: listed more than once", method));
    }
    if (!is_plain(method)) {
      parse_method(method);
    } else if (std::find(std::begin(kPlainTypes), std::end(kPlainTypes), method.substr(kPlainPrefix.size())) ==
               std::end(kPlainTypes)) {
      throw QuantizerConfigError(
          fmt::format("{}: llama's own caches are llama:f16, llama:q8_0 and llama:q4_0", method));
    }
  }
}

int64_t lockstep_work(std::span<const std::string> methods, int tokens) {
  const bool listed = std::find(methods.begin(), methods.end(), kReference) != methods.end();
  return static_cast<int64_t>(methods.size() + (listed ? 1 : 2)) * tokens;
}

LockstepResult run_lockstep(LlamaHost& host, std::span<const std::string> methods, std::span<const Token> text,
                            const std::function<void(int64_t tokens)>& progress) {
  std::vector<Lane> lanes = make_lanes(host, methods, static_cast<int>(text.size()));
  const size_t context = text.size() - kPredictions;
  for (Lane& lane : lanes) {
    const Clock::time_point start = Clock::now();
    lane.logits = lane.runner->prefill(text.first(context));
    lane.prefill_seconds = seconds_since(start);
    lane.encode_seconds = lane.runner->encode_seconds();
    progress(static_cast<int64_t>(context));
  }
  for (size_t i = context; i < text.size(); ++i) {
    predict(lanes, text[i]);
    feed(lanes, text[i], i);
    progress(static_cast<int64_t>(lanes.size()));
  }
  LockstepResult result;
  for (const std::string& method : methods) {
    const auto lane = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& l) { return l.method == method; });
    result.rows.push_back(row_of(*lane, host, text.size()));
  }
  result.floor_kl = lanes.back().scores.kl_mean();
  return result;
}

}  // namespace veloxquant::llama
