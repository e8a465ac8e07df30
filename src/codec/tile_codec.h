// What all codecs of this folder share: rows are unpacked into a tile of fp32 in the codec's own frame (rotated, for a
// codec with a map), and attention runs on the tile. A codec supplies encode(), unpack() and, if it has one, the map.
#pragma once

#include <memory>
#include <string>

#include "codec/map/orthogonal_map.h"
#include "core/layout.h"
#include "veloxquant/codec.h"

namespace veloxquant {

class TileCodec : public Codec {
 public:
  std::string name() const final { return name_; }
  int dim() const final { return dim_; }
  const BlockFormat& format() const final { return format_; }
  CodecFloats floats() const final;

  void decode(const std::byte* block, Range range, float* out, int64_t ld) const final;
  void prepare_query(const float* q, int n, float* prep) const final;
  void score(const float* prep, int n, const std::byte* block, Range range, float* logit, int64_t ld,
             float* tile) const override;
  void accumulate(const float* weight, int64_t ld, int n, const std::byte* block, Range range, float* acc,
                  float* tile) const override;
  void finish(const float* acc, int n, float* out) const final;

 protected:
  TileCodec(std::string name, int dim, BlockFormat format, CodeOrder order,
            std::shared_ptr<const OrthogonalMap> map = nullptr)
      : name_(std::move(name)), dim_(dim), format_(format), order_(order), map_(std::move(map)) {}

  /// Units [units) into tile[row][channel] or, in channel order, tile[channel][row]; rows count from the first unit.
  virtual void unpack(const std::byte* block, Range units, float* tile, int64_t ld) const = 0;

  const OrthogonalMap* map() const { return map_.get(); }

 private:
  struct ChannelTile {
    const float* first;  ///< channel 0 of the first row asked for
    int64_t ld;
  };
  /// Rows [range) in channel order; `tile` has room for two blocks.
  ChannelTile channels(const std::byte* block, Range range, float* tile) const;
  /// Rows [range) in row order, at out[row - range.begin]; `tile` has room for one block in channel order.
  void rows(const std::byte* block, Range range, float* out, int64_t ld, float* tile) const;

  std::string name_;
  int dim_;
  BlockFormat format_;
  CodeOrder order_;
  std::shared_ptr<const OrthogonalMap> map_;
};

}  // namespace veloxquant
