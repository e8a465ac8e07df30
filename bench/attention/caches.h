// Our side of the contest: caches of one codec, filled through the public interface.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "contest.h"
#include "veloxquant/cache_set.h"
#include "workload.h"

namespace veloxquant::bench {

/// A codec is one of codebook4, codebook3, codebook2, affine4, affine2, int8, f16 - keys and values alike, every row
/// coded -, or a method as the command line names it.
struct Candidate {
  std::string codec;
  std::string arithmetic;  ///< float, 2term or int8
};

/// What is measured unless something else was asked for.
std::vector<std::string> default_codecs();
/// The codec with each of these arithmetics; f16 and methods come with their own one alone.
std::vector<Candidate> candidates_of(const std::string& codec, const std::vector<std::string>& arithmetics);
/// The one place that knows how caches are configured. Throws QuantizerConfigError.
MethodSpec method_of(const Candidate& candidate);

/// Attention over `tokens` stored rows and the rows of its own call, which stays pending. The copies are the layers of
/// one cache set, as the layers of a model are; together they fill at least `rotating_bytes`.
class StoredAttention final : public Contestant {
 public:
  StoredAttention(const Workload& workload, const Candidate& candidate, int tokens, int queries, size_t rotating_bytes);
  void use_threads(int threads) override { threads_ = threads; }
  void call() override;
  int copies() const override { return layers_->size(); }

  size_t packed_bytes() const { return packed_bytes_; }         ///< of the stored rows of one copy
  const std::vector<float>& output() const { return output_; }  ///< [queries][kQHeads][dim]

 private:
  std::unique_ptr<CacheSet> layers_;
  AttendIn in_;
  AttendOut out_;
  std::vector<float> output_;
  size_t packed_bytes_ = 0;
  int next_ = 0, threads_ = 1;
};

/// Storing a prompt: fp16 keys and values, appended and committed in chunks until `tokens` are stored. Memory comes
/// from an arena that has been used before, as that of a running server has.
class Encoding final : public Contestant {
 public:
  Encoding(const Workload& workload, const Candidate& candidate, int tokens);
  void use_threads(int) override {}  ///< one: commits of a layer are not shared
  void call() override;

  /// Bytes of the fp16 rows that a call takes in.
  size_t input_bytes() const;

 private:
  const Workload& workload_;
  std::unique_ptr<CacheSet> layers_;
  int tokens_;
};

}  // namespace veloxquant::bench
