// A coarse code and a sign sketch of what it leaves over (the inner-product variant of TurboQuant, arXiv:2504.19874):
//   u^ = code of the rotated row, e = R k - u^, estimate of <q, k> = <R q, u^> + sketch of e with R q.
// The sketch works in the rotated frame, where its directions have the same law, so nothing is rotated back. With 1 bit
// there is no code and u^ = 0. Block: [lloyd_row of bits - 1 | sign_sketch].
#include <algorithm>
#include <cstring>
#include <vector>

#include "codec/codec_check.h"
#include "codec/lloyd_row.h"
#include "codec/pair_codec.h"
#include "codec/row_norms.h"
#include "codec/sign_sketch.h"

namespace veloxquant {
namespace {

/// What stands in the code's place where there is none: the norm, 2 bytes a row. Decodes to 0 in any layout.
class NormAlone final : public Codec {
 public:
  explicit NormAlone(int dim) : dim_(dim), format_(BlockFormat::of(1, {sizeof(uint16_t)})) {}
  std::string name() const override { return "norm"; }
  int dim() const override { return dim_; }
  const BlockFormat& format() const override { return format_; }
  CodecFloats floats() const override { return {}; }

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    for (int first = 0; first < rows.rows; first += kNormRows) {
      const int count = std::min(kNormRows, rows.rows - first);
      const RowNorms norms({rows.x + first * rows.ld, rows.ld, count, rows.dim});
      std::memcpy(block + format_.offset(0, unit + first), norms.stored, static_cast<size_t>(count) * sizeof(uint16_t));
    }
  }
  bool seal(std::byte*) const override { return true; }
  void decode(BlockView, Range range, float* out, int64_t ld) const override {
    for (int r = 0; r < range.size(); ++r) std::fill_n(out + r * ld, dim_, 0.0f);
  }
  void prepare_query(const float*, int, float*) const override {}
  void score(const float*, int n, BlockView, Range range, float* logit, int64_t ld, float*) const override {
    for (int i = 0; i < n; ++i) std::fill_n(logit + i * ld, range.size(), 0.0f);
  }
  void accumulate(const float*, int64_t, int, BlockView, Range, float*, float*) const override {}
  void finish(const float*, int, float*) const override {}

 private:
  int dim_;
  BlockFormat format_;
};

class ResidualSketchCodec final : public PairCodec {
 public:
  ResidualSketchCodec(std::shared_ptr<const OrthogonalMap> rotation, std::shared_ptr<const TileCodec> code,
                      const std::shared_ptr<const TileCodec>& sketch)
      : PairCodec((code ? code->name() + "+" : "") + sketch->name(), sketch->dim(),
                  code ? std::shared_ptr<const Codec>(code) : std::make_shared<NormAlone>(sketch->dim()), sketch),
        rotation_(std::move(rotation)),
        code_(std::move(code)) {}

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    first().encode(rows, block, unit);
    thread_local std::vector<float> scratch;  // kept, as those of encoders are
    scratch.resize(static_cast<size_t>(2 * std::min(rows.rows, kNormRows) * dim()));
    for (int r = 0; r < rows.rows; r += kNormRows) {
      const int count = std::min(kNormRows, rows.rows - r);
      float* rest = scratch.data();
      float* coded = rest + int64_t{count} * dim();
      rotation_->forward(count, rows.x + r * rows.ld, rows.ld, rest, dim());
      if (code_) {
        code_->decode_frame(block, {unit + r, unit + r + count}, coded);
        for (int64_t i = 0; i < int64_t{count} * dim(); ++i) rest[i] -= coded[i];
      }
      second().encode({rest, dim(), count, dim()}, second_block(block), unit + r);
    }
  }

  void decode(BlockView block, Range range, float* out, int64_t ld) const override {
    first().decode(block, range, out, ld);
    std::vector<float> rest(static_cast<size_t>(range.size()) * static_cast<size_t>(dim()));
    second().decode(second_block(block), range, rest.data(), dim());
    std::vector<float> turned_back(rest.size());
    rotation_->inverse(range.size(), rest.data(), dim(), turned_back.data(), dim());
    for (int r = 0; r < range.size(); ++r) kernels::add(out + r * ld, dim(), turned_back.data() + int64_t{r} * dim());
  }

  void prepare_query(const float* q, int n, float* prep) const override {
    thread_local std::vector<float> turned;  // kept, so that a steady decode loop allocates nothing
    turned.resize(static_cast<size_t>(dim()));
    for (int i = 0; i < n; ++i, q += dim(), prep += floats().query) {
      first().prepare_query(q, 1, prep);
      rotation_->forward(1, q, dim(), turned.data(), dim());
      second().prepare_query(turned.data(), 1, prep + second_query());
    }
  }

 private:
  void join(const float* first, const float* second, float* out) const override {
    std::vector<float> rest(static_cast<size_t>(dim()));
    rotation_->inverse(1, second, dim(), rest.data(), dim());
    for (int c = 0; c < dim(); ++c) out[c] += first[c] + rest[static_cast<size_t>(c)];
  }

  std::shared_ptr<const OrthogonalMap> rotation_;
  std::shared_ptr<const TileCodec> code_;  // null: none
};

}  // namespace

std::shared_ptr<const Codec> residual_sketch(const ResidualSketch& options) {
  ArgumentCheck("residual_sketch")
      .range("dim", options.dim, 1, kMostDim)
      .range("bits", options.bits, 1, 8)
      .range("sketch_rows", options.sketch_rows, 0, 16 * options.dim)
      .done();
  const LloydRow code{.dim = options.dim,
                      .bits = options.bits - 1,
                      .rotation = options.rotation,
                      .seed = options.seed,
                      .stream = options.stream,
                      .role = options.role};
  const std::shared_ptr<const OrthogonalMap> rotation = rotation_map(code);
  const int rows = options.sketch_rows == 0 ? options.dim : options.sketch_rows;
  return std::make_shared<ResidualSketchCodec>(
      rotation, code.bits == 0 ? nullptr : lloyd_row(code, rotation),
      sign_sketch(sketch_map(options.dim, rows, options.kind, options.seed, options.stream),
                  sketch_scale(options.dim, rows, options.kind), options.role));
}

}  // namespace veloxquant
