#include "codec/pair_codec.h"

#include <algorithm>
#include <vector>

#include "core/check.h"
#include "kernels/kernels.h"

namespace veloxquant {
namespace {

/// Queries whose parts are brought together at a time: the scratch memory has room for as many.
constexpr int kQueries = 16;

BlockFormat joined(const BlockFormat& first, const BlockFormat& second) {
  VQ_CHECK(first.unit_rows == 1 && second.unit_rows == 1 && first.units == second.units);
  BlockFormat format{1, first.units, {}};
  size_t part = 0;
  for (const BlockFormat* of : {&first, &second}) {
    for (size_t bytes : of->part_bytes) {
      if (bytes == 0) continue;
      VQ_CHECK(part < format.part_bytes.size());
      format.part_bytes[part++] = bytes;
    }
  }
  return format;
}

/// Rows of `width` floats between rows `ldx` and `ldy` apart.
void copy_rows(int n, int width, const float* x, int64_t ldx, float* y, int64_t ldy) {
  for (int i = 0; i < n; ++i) std::copy_n(x + i * ldx, width, y + i * ldy);
}

}  // namespace

PairCodec::PairCodec(std::string name, int dim, std::shared_ptr<const Codec> first, std::shared_ptr<const Codec> second)
    : name_(std::move(name)),
      dim_(dim),
      first_(std::move(first)),
      second_(std::move(second)),
      format_(joined(first_->format(), second_->format())) {
  const CodecFloats a = first_->floats(), b = second_->floats();
  const int64_t scores = std::max(a.query, b.query) + format_.capacity_rows();
  floats_ = {a.query + b.query, a.acc + b.acc,
             std::max(a.tile, b.tile) + kQueries * std::max<int64_t>(scores, std::max(a.acc, b.acc))};
}

BlockView PairCodec::second_block(BlockView block) const {
  const size_t skip = first_->format().block_bytes();
  BlockView view(block.data + skip, block.layout);
  if (block.next) view.next = block.next + skip;
  return view;
}

// A block has one layout: both parts change, or neither does.
bool PairCodec::seal(std::byte* block) const {
  if (!first_->seal(block)) return false;
  if (second_->seal(second_block(block))) return true;
  first_->unseal(block);
  return false;
}

void PairCodec::unseal(std::byte* block) const {
  first_->unseal(block);
  second_->unseal(second_block(block));
}

void PairCodec::score(const float* prep, int n, BlockView block, Range range, float* logit, int64_t ld,
                      float* tile) const {
  if (range.empty()) return;
  const int first_query = first_->floats().query, second_query = second_->floats().query;
  float* query = tile;
  float* further = query + kQueries * std::max(first_query, second_query);
  float* inner = further + kQueries * format_.capacity_rows();
  for (int at = 0; at < n; at += kQueries, prep += int64_t{kQueries} * floats_.query, logit += kQueries * ld) {
    const int count = std::min(kQueries, n - at);
    copy_rows(count, first_query, prep, floats_.query, query, first_query);
    first_->score(query, count, block, range, logit, ld, inner);
    copy_rows(count, second_query, prep + first_query, floats_.query, query, second_query);
    second_->score(query, count, second_block(block), range, further, range.size(), inner);
    for (int i = 0; i < count; ++i) kernels::add(logit + i * ld, range.size(), further + i * range.size());
  }
}

void PairCodec::accumulate(const float* weight, int64_t ld, int n, BlockView block, Range range, float* acc,
                           float* tile) const {
  const int first_acc = first_->floats().acc, second_acc = second_->floats().acc;
  float* sum = tile;
  float* inner = sum + kQueries * std::max(first_acc, second_acc);
  for (int at = 0; at < n; at += kQueries, weight += kQueries * ld, acc += int64_t{kQueries} * floats_.acc) {
    const int count = std::min(kQueries, n - at);
    copy_rows(count, first_acc, acc, floats_.acc, sum, first_acc);
    first_->accumulate(weight, ld, count, block, range, sum, inner);
    copy_rows(count, first_acc, sum, first_acc, acc, floats_.acc);
    copy_rows(count, second_acc, acc + first_acc, floats_.acc, sum, second_acc);
    second_->accumulate(weight, ld, count, second_block(block), range, sum, inner);
    copy_rows(count, second_acc, sum, second_acc, acc + first_acc, floats_.acc);
  }
}

void PairCodec::finish(const float* acc, int n, float* out) const {
  std::vector<float> a(static_cast<size_t>(first_->dim())), b(static_cast<size_t>(second_->dim()));
  for (int i = 0; i < n; ++i, acc += floats_.acc, out += dim_) {
    std::fill(a.begin(), a.end(), 0.0f);
    std::fill(b.begin(), b.end(), 0.0f);
    first_->finish(acc, 1, a.data());
    second_->finish(acc + first_->floats().acc, 1, b.data());
    join(a.data(), b.data(), out);
  }
}

}  // namespace veloxquant
