// A method whose codecs count what the engine asks of them.
#pragma once

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

#include "veloxquant/registry.h"

namespace veloxquant::test {

struct CodecCounts {
  std::atomic<int64_t> encode_calls{0}, encoded_rows{0}, scored_rows{0}, summed_rows{0}, decoded_rows{0};
  void restart() {
    for (std::atomic<int64_t>* count : {&encode_calls, &encoded_rows, &scored_rows, &summed_rows, &decoded_rows}) {
      count->store(0);
    }
  }
};

class CountingCodec final : public Codec {
 public:
  CountingCodec(std::shared_ptr<const Codec> inner, CodecCounts* counts) : inner_(std::move(inner)), counts_(counts) {}

  std::string name() const override { return inner_->name(); }
  int dim() const override { return inner_->dim(); }
  const BlockFormat& format() const override { return inner_->format(); }
  CodecFloats floats() const override { return inner_->floats(); }
  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    ++counts_->encode_calls;
    counts_->encoded_rows += rows.rows;
    inner_->encode(rows, block, unit);
  }
  bool seal(std::byte* block) const override { return inner_->seal(block); }
  void unseal(std::byte* block) const override { inner_->unseal(block); }
  void decode(BlockView block, Range range, float* out, int64_t ld) const override {
    counts_->decoded_rows += range.size();
    inner_->decode(block, range, out, ld);
  }
  void prepare_query(const float* q, int n, float* prep) const override { inner_->prepare_query(q, n, prep); }
  void score(const float* prep, int n, BlockView block, Range range, float* logit, int64_t ld,
             float* tile) const override {
    counts_->scored_rows += range.size();
    inner_->score(prep, n, block, range, logit, ld, tile);
  }
  void accumulate(const float* weight, int64_t ld, int n, BlockView block, Range range, float* acc,
                  float* tile) const override {
    counts_->summed_rows += range.size();
    inner_->accumulate(weight, ld, n, block, range, acc, tile);
  }
  void finish(const float* acc, int n, float* out) const override { inner_->finish(acc, n, out); }

 private:
  std::shared_ptr<const Codec> inner_;
  CodecCounts* counts_;
};

/// Must outlive the caches that are made of it.
class CountedMethod {
 public:
  explicit CountedMethod(std::string_view text) : spec_(parse_method(text)), def_(*spec_.def) {
    def_.build = [this, build = def_.build](const Options& options, const BuildContext& context) {
      Recipe recipe = build(options, context);
      recipe.key = std::make_shared<CountingCodec>(recipe.key, &key);
      recipe.value = std::make_shared<CountingCodec>(recipe.value, &value);
      return recipe;
    };
    spec_.def = &def_;
  }
  CountedMethod(const CountedMethod&) = delete;
  CountedMethod& operator=(const CountedMethod&) = delete;

  const MethodSpec& spec() const { return spec_; }
  CodecCounts key, value;

 private:
  MethodSpec spec_;
  MethodDef def_;
};

}  // namespace veloxquant::test
