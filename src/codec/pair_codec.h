// A row as the sum of what two codecs hold of it. Block: [block of the first | block of the second]; a score is the sum
// of their scores. A codec says what of a row, a query and an output each of the two gets.
#pragma once

#include <memory>
#include <string>

#include "veloxquant/codec.h"

namespace veloxquant {

class PairCodec : public Codec {
 public:
  std::string name() const final { return name_; }
  int dim() const final { return dim_; }
  const BlockFormat& format() const final { return format_; }
  CodecFloats floats() const final { return floats_; }

  bool seal(std::byte* block) const final;
  void unseal(std::byte* block) const final;
  void score(const float* prep, int n, BlockView block, Range range, float* logit, int64_t ld, float* tile) const final;
  void accumulate(const float* weight, int64_t ld, int n, BlockView block, Range range, float* acc,
                  float* tile) const final;
  void finish(const float* acc, int n, float* out) const final;

 protected:
  /// Both have units of one row.
  PairCodec(std::string name, int dim, std::shared_ptr<const Codec> first, std::shared_ptr<const Codec> second);

  const Codec& first() const { return *first_; }
  const Codec& second() const { return *second_; }
  std::byte* second_block(std::byte* block) const { return block + first_->format().block_bytes(); }
  BlockView second_block(BlockView block) const;
  /// Where the second codec's part of a prepared query begins.
  int second_query() const { return first_->floats().query; }

  /// out[dim] += the row that `first` and `second`, rows of the two codecs, are parts of.
  virtual void join(const float* first, const float* second, float* out) const = 0;

 private:
  std::string name_;
  int dim_;
  std::shared_ptr<const Codec> first_, second_;
  BlockFormat format_;
  CodecFloats floats_;
};

}  // namespace veloxquant
