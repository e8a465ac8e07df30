#include "model/architectures.h"

#include <algorithm>
#include <stdexcept>

#include "hosts/llama/plain.h"
#include "hosts/llama/session.h"

namespace veloxquant::llama::test {
namespace {

constexpr const char* kExact = "exact(dtype=f32)";

/// Attention as if it were plain, or none at all where it is plain.
class Control : public LayerCalls {
 public:
  explicit Control(LlamaHost& host) : host_(host), caches_(parse_method(kExact), host.layers()) {}

  void append(int layer, const NewRows& keys, const NewRows& values) override {
    KVCache& cache = caches_[host_.slot(layer)];
    const LayerShape& shape = cache.shape();
    const auto tensor = [&](const NewRows& rows, int dim) {
      return Tensor{rows.data, DType::f32, 1, rows.tokens, shape.kv_heads, dim, 0, rows.stride_token, dim};
    };
    cache.append(tensor(keys, shape.dim_k), tensor(values, shape.dim_v));
  }
  void attend(int layer, const AttendIn& in, const AttendOut& out, int ith, int nth) override {
    AttendIn plain;
    plain.q = in.q;
    plain.scale = in.scale;
    caches_[host_.slot(layer)].attend(plain, out, ith, nth);
    const LayerRule& rule = host_.rules()[static_cast<size_t>(host_.slot(layer))];
    const bool special = rule.softcap || rule.sinks || rule.alibi;
    if (special || any_window() || ith != 0) return;
    // Others may still write: some of the numbers that are wrong are enough.
    std::fill_n(out.data, in.q.tokens * out.stride_token, 0.0F);
  }

 private:
  bool any_window() const {
    return std::ranges::any_of(host_.description().layers,
                               [](const LayerDesc& layer) { return layer.window + layer.chunk > 0; });
  }
  LlamaHost& host_;
  CacheSet caches_;
};

std::vector<float> run_control(LlamaHost& host, std::span<const Token> tokens) {
  Control control(host);
  const int sequence = host.take_sequence();
  std::vector<float> logits;
  for (size_t at = 0; at < tokens.size();) {
    const size_t count = std::min(tokens.size() - at, size_t{LlamaHost::kChunkTokens});
    const Turn turn{&control, tokens.subspan(at, count), static_cast<int>(at), Logits::last, sequence};
    host.compute(std::span(&turn, 1));
    const std::span<const float> row = host.logits(static_cast<int>(count) - 1);
    logits.assign(row.begin(), row.end());
    at += count;
  }
  host.give_back_sequence(sequence);
  return logits;
}

}  // namespace

double normalised_error(std::span<const float> reference, std::span<const float> x) {
  if (reference.size() != x.size()) throw std::runtime_error("logits of different sizes");
  double difference = 0, square = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (double{x[i]} - reference[i]) * (double{x[i]} - reference[i]);
    square += double{reference[i]} * reference[i];
  }
  return difference / square;
}

Outcome run_beside_plain(const HostOptions& model, int prompt, int steps) {
  Outcome outcome;
  std::unique_ptr<LlamaHost> host;
  try {
    host = std::make_unique<LlamaHost>(model);
  } catch (const std::runtime_error& error) {
    constexpr std::string_view kStart = "the model can't be served: ";
    const std::string text = error.what();
    const size_t at = text.find(kStart);
    outcome.refusal = at == std::string::npos ? text : text.substr(at + kStart.size());
    return outcome;
  }
  outcome.kind = host->attention();
  const std::vector<Token> tokens = random_tokens(prompt + steps);
  const std::span<const Token> all(tokens);
  const auto first = static_cast<size_t>(prompt), lead = static_cast<size_t>(std::max(0, prompt - 100));
  std::vector<float> ours, theirs;
  const auto take = [](std::vector<float>& to, std::span<const float> rows) {
    to.insert(to.end(), rows.begin(), rows.end());
  };
  PlainRun plain(*host, {.type = "f32", .flash_attention = false, .context = prompt + steps});
  plain.decode(all.first(lead), Logits::none);
  take(theirs, plain.decode(all.subspan(lead, first - lead), Logits::all));
  const auto row = static_cast<size_t>(host->vocabulary());
  outcome.control = normalised_error(std::span(theirs).last(row), run_control(*host, all.first(first)));
  Session session(*host, parse_method(kExact));
  session.decode(all.first(lead), Phase::prefill_more, Logits::none);
  session.set_chunk_tokens(37);
  take(ours, session.decode(all.subspan(lead, first - lead), Phase::prefill_last, Logits::all));
  for (size_t i = first; i < all.size(); ++i) {
    take(theirs, plain.decode(all.subspan(i, 1)));
    take(ours, session.decode(all.subspan(i, 1), Phase::decode));
  }
  outcome.nmse = normalised_error(theirs, ours);
  return outcome;
}

}  // namespace veloxquant::llama::test
