// Two codecs on disjoint channels (the mixed precision of TurboQuant, arXiv:2504.19874, and the outlier channels of
// QJL, arXiv:2406.03482). The outlier channels are fitted: those of the largest mean magnitude in the first rows.
// Block: [outlier codec | inlier codec].
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "codec/codec_check.h"
#include "codec/pair_codec.h"
#include "core/check.h"
#include "veloxquant/codecs.h"

namespace veloxquant {
namespace {

constexpr int kIndexBytes = 2;  // of a channel in the fitted state, little-endian; kMostDim fits

class ChannelSplitCodec final : public PairCodec {
 public:
  /// Unfitted where `outliers`, ascending, is empty.
  ChannelSplitCodec(const ChannelSplit& options, std::vector<int> outliers)
      : PairCodec(
            fmt::format("split{}({},{})", options.outlier->dim(), options.outlier->name(), options.inlier->name()),
            options.dim, options.outlier, options.inlier),
        options_(options),
        fitted_(!outliers.empty()),
        outliers_(std::move(outliers)) {
    // Queries may come before the first rows are coded: what they become is not used.
    for (int c = 0; !fitted_ && c < options.outlier->dim(); ++c) outliers_.push_back(c);
    for (int c = 0; c < options.dim; ++c) {
      if (!std::binary_search(outliers_.begin(), outliers_.end(), c)) inliers_.push_back(c);
    }
  }

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    VQ_CHECK(fitted_);
    thread_local std::vector<float> scratch;  // kept, as those of encoders are
    const auto part = [&](const std::vector<int>& channels, const Codec& codec) {
      scratch.resize(static_cast<size_t>(rows.rows) * static_cast<size_t>(codec.dim()));
      for (int r = 0; r < rows.rows; ++r) {
        gather(rows.x + r * rows.ld, channels, codec.dim(), scratch.data() + int64_t{r} * codec.dim());
      }
      return RowsView{scratch.data(), codec.dim(), rows.rows, codec.dim()};
    };
    first().encode(part(outliers_, first()), block, unit);
    second().encode(part(inliers_, second()), second_block(block), unit);
  }

  void decode(BlockView block, Range range, float* out, int64_t ld) const override {
    const auto n = static_cast<size_t>(range.size());
    std::vector<float> outlier(n * static_cast<size_t>(first().dim())), inlier(n * static_cast<size_t>(second().dim()));
    first().decode(block, range, outlier.data(), first().dim());
    second().decode(second_block(block), range, inlier.data(), second().dim());
    for (int r = 0; r < range.size(); ++r) {
      std::fill_n(out + r * ld, dim(), 0.0f);
      join(outlier.data() + int64_t{r} * first().dim(), inlier.data() + int64_t{r} * second().dim(), out + r * ld);
    }
  }

  void prepare_query(const float* q, int n, float* prep) const override {
    thread_local std::vector<float> part;  // kept, so that a steady decode loop allocates nothing
    part.resize(static_cast<size_t>(dim()));
    for (int i = 0; i < n; ++i, q += dim(), prep += floats().query) {
      gather(q, outliers_, first().dim(), part.data());
      first().prepare_query(part.data(), 1, prep);
      gather(q, inliers_, second().dim(), part.data());
      second().prepare_query(part.data(), 1, prep + second_query());
    }
  }

  int fit_rows() const override { return fitted_ ? 0 : options_.fit_rows; }

  std::shared_ptr<const Codec> fit(const RowsView& rows) const override {
    VQ_CHECK(rows.dim == dim() && rows.rows >= 1);
    std::vector<double> magnitude(static_cast<size_t>(dim()));
    for (int r = 0; r < std::min(rows.rows, options_.fit_rows); ++r) {
      for (size_t c = 0; c < magnitude.size(); ++c) {
        magnitude[c] += std::fabs(double{rows.x[r * rows.ld + static_cast<int64_t>(c)]});
      }
    }
    std::vector<int> channels(magnitude.size());
    std::iota(channels.begin(), channels.end(), 0);
    std::stable_sort(channels.begin(), channels.end(), [&](int a, int b) {
      return magnitude[static_cast<size_t>(a)] > magnitude[static_cast<size_t>(b)];
    });
    channels.resize(static_cast<size_t>(first().dim()));
    std::sort(channels.begin(), channels.end());
    return std::make_shared<ChannelSplitCodec>(options_, std::move(channels));
  }

  std::vector<std::byte> fitted_state() const override {
    std::vector<std::byte> bytes;
    for (size_t i = 0; fitted_ && i < outliers_.size(); ++i) {
      for (int shift = 0; shift < 8 * kIndexBytes; shift += 8) {
        bytes.push_back(static_cast<std::byte>(outliers_[i] >> shift & 0xff));
      }
    }
    return bytes;
  }

  std::shared_ptr<const Codec> fit_from(std::span<const std::byte> bytes) const override {
    const size_t size = static_cast<size_t>(first().dim() * kIndexBytes);
    if (bytes.size() != size) {
      throw FormatError(fmt::format("outlier channels: {} bytes given, must be {}", bytes.size(), size));
    }
    std::vector<int> channels;
    for (size_t i = 0; i < size; i += kIndexBytes) {
      const int channel = static_cast<int>(bytes[i]) | static_cast<int>(bytes[i + 1]) << 8;
      const int least = channels.empty() ? 0 : channels.back() + 1;
      if (channel < least || channel >= dim()) {
        throw FormatError(fmt::format("outlier channel {} given, allowed {}..{}", channel, least, dim() - 1));
      }
      channels.push_back(channel);
    }
    return std::make_shared<ChannelSplitCodec>(options_, std::move(channels));
  }

 private:
  /// Channels of a row, one after the other or, where `width` is that of a whole row, in their places.
  void gather(const float* row, const std::vector<int>& channels, int width, float* out) const {
    if (width == dim()) {
      std::fill_n(out, width, 0.0f);
      for (int c : channels) out[c] = row[c];
    } else {
      for (int c : channels) *out++ = row[c];
    }
  }

  void join(const float* outlier, const float* inlier, float* out) const override {
    for (int c : outliers_) out[c] += *outlier++;
    const bool whole = second().dim() == dim();
    for (int c : inliers_) out[c] += whole ? inlier[c] : *inlier++;
  }

  ChannelSplit options_;
  bool fitted_;
  std::vector<int> outliers_, inliers_;  // ascending
};

}  // namespace

std::shared_ptr<const Codec> channel_split(const ChannelSplit& options) {
  ArgumentCheck("channel_split")
      .range("dim", options.dim, 2, kMostDim)
      .range("fit_rows", options.fit_rows, 1, std::numeric_limits<int>::max())
      .done();
  VQ_CHECK(options.outlier && options.inlier);
  const int outliers = options.outlier->dim(), inliers = options.inlier->dim();
  ArgumentCheck check("channel_split");
  check.range("outlier->dim()", outliers, 1, options.dim - 1);
  if (inliers != options.dim) check.range("inlier->dim()", inliers, options.dim - outliers, options.dim - outliers);
  check.done();
  return std::make_shared<ChannelSplitCodec>(options, std::vector<int>());
}

}  // namespace veloxquant
