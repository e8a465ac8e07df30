// The codecs a recipe composes. `dim` is the head size of the side that is coded; any size >= 1 works unless said.
#pragma once

#include <cstdint>
#include <memory>

#include "veloxquant/codec.h"

namespace veloxquant {

/// Exact rows in their element type: 64-row blocks, dim * size_of(type) bytes a row.
inline constexpr int kExactBlockRows = 64;
std::shared_ptr<const Codec> raw_rows(DType type, int dim, int block_rows = kExactBlockRows);

/// Asymmetric affine code, one (zero, scale) pair per channel over `group` consecutive rows (units of `group` rows):
/// dim * (packed(group, bits) + 4) bytes a unit. Keys of KIVI (arXiv:2402.02750). bits 1..8.
std::shared_ptr<const Codec> affine_block(int dim, int bits, int group, CodecRole role = {Side::key});
/// The same code per row, one pair per `group` channels (the last group may be shorter; group > dim: one group):
/// packed(dim, bits) + 4 * ceil(dim / group) bytes a row. Values of KIVI.
std::shared_ptr<const Codec> affine_row(int dim, int bits, int group, CodecRole role = {Side::value});

/// int8 with one fp16 scale a row: dim + 2 bytes.
std::shared_ptr<const Codec> int8_row(int dim, CodecRole role = {Side::value});

/// Which table the second stage of lloyd_row uses.
enum class Stage2 : uint8_t {
  none,     ///< one stage of `bits`
  joint,    ///< the Lloyd-Max table of 2 * bits, its index cut in a high and a low half
  matched,  ///< Lloyd-Max of the true residual density of stage 1
  laplace   ///< Lloyd-Max of a Laplace density of scale `laplace_scale`
};
enum class NormMode : uint8_t { paper, lsq, unbiased };
enum class Rotation : uint8_t {
  rht,  ///< signed Hadamard rounds; where no Hadamard matrix of the order is known: haar of the same seed
  haar  ///< Q of a QR factorisation with positive diagonal of R
};

struct LloydRow {
  int dim = 0;
  int bits = 2;  ///< per stage; 1..8 with one stage, 1..4 with two
  Stage2 stage2 = Stage2::none;
  double laplace_scale = 0;  ///< 0: the reference's (sqrt(3 pi) / 2) * 4^-bits / sqrt(2)
  NormMode norm = NormMode::paper;
  Rotation rotation = Rotation::rht;
  int rounds = 2;  ///< of rht
  uint64_t seed = 0;
  /// Which stream of random numbers the rotation is drawn from: two codecs of one layer must not share one.
  uint32_t stream = 0;
  CodecRole role = {};
};
/// Unit-norm split, rotation, Lloyd-Max codes in one or two streams, one fp16 norm a row (TurboQuant,
/// arXiv:2504.19874): ceil(dim * bits / 8) bytes a stream + 2 a row. Below dim 64 the tables are those of a coordinate
/// of the sphere, else of N(0, 1).
std::shared_ptr<const Codec> lloyd_row(const LloydRow& options);

/// Which random directions a sketch projects on. Both estimates are unbiased; that of orthogonal directions has about a
/// third of the variance where there are as many as channels.
enum class SketchRows : uint8_t { gaussian, orthogonal };

struct SignSketch {
  int dim = 0;
  int rows = 0;  ///< directions, 1..max(64, 16 * dim); 0: dim
  SketchRows kind = SketchRows::orthogonal;
  uint64_t seed = 0;
  uint32_t stream = 0;  ///< as of LloydRow
  CodecRole role = {};
};
/// Signs of the projections of a row on `rows` random directions and its norm (QJL, arXiv:2406.03482): ceil(rows / 8) +
/// 2 bytes. Inner products with it are unbiased; a decoded row is an estimator, longer than the row was.
std::shared_ptr<const Codec> sign_sketch(const SignSketch& options);

struct ResidualSketch {
  int dim = 0;
  int bits = 2;         ///< of a coordinate in all, 1..8: bits - 1 of a code and a sign
  int sketch_rows = 0;  ///< 1..16 * dim; 0: dim
  SketchRows kind = SketchRows::gaussian;
  Rotation rotation = Rotation::haar;
  uint64_t seed = 0;
  uint32_t stream = 0;  ///< as of LloydRow
  CodecRole role = {};
};
/// lloyd_row of bits - 1 bits and a sign sketch of what it leaves over (the inner-product variant of TurboQuant,
/// arXiv:2504.19874): ceil(dim * (bits - 1) / 8) + ceil(sketch_rows / 8) + 4 bytes a row. Inner products are unbiased.
std::shared_ptr<const Codec> residual_sketch(const ResidualSketch& options);

struct ChannelSplit {
  int dim = 0;
  int fit_rows = 1;  ///< first rows of a stream, from which the outlier channels are chosen
  /// Of the outlier channels alone: their number is its dim.
  std::shared_ptr<const Codec> outlier;
  /// Of the others: of dim - outlier->dim() channels, or of all with the outlier channels set to 0.
  std::shared_ptr<const Codec> inlier;
};
/// Two codecs on disjoint channels, the bytes of both. The outlier channels are those of the largest mean magnitude; of
/// equal ones, the lower. Both codecs have units of one row. The codec that is returned has to be fitted.
std::shared_ptr<const Codec> channel_split(const ChannelSplit& options);

}  // namespace veloxquant
