// int8 rows with one fp16 scale: s = fp16(max(max|x| / 127, 2^-24)), made one fp16 step larger when max|x| / s would
// pass 127; code = round(x / s). Decoded: s * code. Block: [64 x dim codes | 64 x scale].
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codec/codec_check.h"
#include "codec/lanes.h"
#include "codec/tile_codec.h"
#include "core/half.h"
#include "kernels/kernels.h"
#include "veloxquant/codecs.h"

namespace veloxquant {
namespace {

constexpr float kLevels = 127;
constexpr float kLeastScale = 0x1p-24f;      // the least fp16 number: a row of zeros must not divide by zero
constexpr uint16_t kGreatestScale = 0x7bff;  // 65504; larger rows saturate

uint16_t row_scale(const float* x, int dim) {
  FloatLanes lanes{};
  int c = 0;
  for (; c + static_cast<int>(kLanes) <= dim; c += static_cast<int>(kLanes)) {
    for (size_t l = 0; l < kLanes; ++l) {
      const float magnitude = std::fabs(x[static_cast<size_t>(c) + l]);
      lanes[l] = magnitude > lanes[l] ? magnitude : lanes[l];
    }
  }
  float largest = *std::max_element(lanes.begin(), lanes.end());
  for (; c < dim; ++c) largest = std::max(largest, std::fabs(x[c]));
  uint16_t scale = std::min(f16_from_f32(std::max(largest / kLevels, kLeastScale)), kGreatestScale);
  if (largest / f32_from_f16(scale) > kLevels && scale < kGreatestScale) ++scale;
  return scale;
}

CodeLanes rounded_quotients(const FloatLanes& value, float scale) {
  CodeLanes code;
  for (size_t l = 0; l < kLanes; ++l) {
    const float quotient = value[l] / scale;
    const float above = quotient > -kLevels ? quotient : -kLevels;
    const float clamped = above < kLevels ? above : kLevels;
    code[l] = std::bit_cast<int32_t>(clamped + 0x1.8p23f);  // the low bits: rounded to nearest even
  }
  return code;
}

class Int8Row final : public TileCodec {
 public:
  Int8Row(int dim, CodecRole role)
      : TileCodec("int8", dim, BlockFormat::of(1, {static_cast<size_t>(dim), sizeof(uint16_t), 0, 0}),
                  CodeOrder::rows) {
    if (role.arithmetic == Arithmetic::float32 || !TileGrid::exists(role.side, 8, dim)) return;
    set_tiles(row_factor_tiles({role.side, FieldOrder::codebook, 8, dim}, {.kind = kernels::TileLevels::Kind::integer},
                               1, role.arithmetic));
  }

  void encode(const RowsView& rows, std::byte* block, int unit) const override {
    for (int r = 0; r < rows.rows; ++r) {
      const float* x = rows.x + r * rows.ld;
      const uint16_t stored = row_scale(x, dim());
      const float scale = f32_from_f16(stored);
      uint8_t* codes = reinterpret_cast<uint8_t*>(block + format().offset(0, unit + r));
      code_lanes(x, dim(), codes, [scale](const FloatLanes& value) { return rounded_quotients(value, scale); });
      std::memcpy(block + format().offset(1, unit + r), &stored, sizeof stored);
    }
  }

 private:
  void unpack(const std::byte* block, Range units, float* tile, int64_t ld) const override {
    kernels::decode_int8(block + format().offset(0, units.begin),
                         reinterpret_cast<const uint16_t*>(block + format().offset(1, units.begin)), units.size(),
                         dim(), tile, ld);
  }

  void get_codes(const std::byte* block, Range rows, uint8_t* codes) const override {
    std::memcpy(codes, block + format().offset(0, rows.begin), static_cast<size_t>(rows.size() * dim()));
  }
  void put_codes(const uint8_t* codes, Range rows, std::byte* block) const override {
    std::memcpy(block + format().offset(0, rows.begin), codes, static_cast<size_t>(rows.size() * dim()));
  }
  bool seal_parameters(const std::byte* block, std::byte* sealed) const override {
    std::memcpy(sealed, block + format().offset(1, 0), kTileRows * sizeof(uint16_t));
    return true;
  }
  void unseal_parameters(const std::byte* sealed, std::byte* block) const override {
    std::memcpy(block + format().offset(1, 0), sealed, kTileRows * sizeof(uint16_t));
  }
};

}  // namespace

std::shared_ptr<const Codec> int8_row(int dim, CodecRole role) {
  ArgumentCheck("int8_row").range("dim", dim, 1, kMostDim).done();
  return std::make_shared<Int8Row>(dim, role);
}

}  // namespace veloxquant
