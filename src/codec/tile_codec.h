// What all codecs of this folder share. In layout 0 rows are unpacked into a tile of fp32 in the codec's own frame
// (where its map leads: rotated, or projected on the directions of a sketch), and attention runs on the tile. In layout
// 1 attention runs on the codes themselves (tile_attention.h). A codec supplies encode(), unpack() and, if it has one,
// the map; for layout 1 its TileAttention and how its codes and parameters move between the layouts.
#pragma once

#include <memory>
#include <string>

#include "codec/map/linear_map.h"
#include "codec/tile_attention.h"
#include "core/layout.h"
#include "veloxquant/codec.h"

namespace veloxquant {

class TileCodec : public Codec {
 public:
  std::string name() const final { return name_; }
  int dim() const final { return dim_; }
  const BlockFormat& format() const final { return format_; }
  CodecFloats floats() const final { return floats_; }

  bool encode_block(const RowsView& rows, std::byte* block) const final;
  bool seal(std::byte* block) const final;
  void unseal(std::byte* block) const final;
  void decode(BlockView block, Range range, float* out, int64_t ld) const final;
  void prepare_query(const float* q, int n, float* prep) const final;
  void score(const float* prep, int n, BlockView block, Range range, float* logit, int64_t ld,
             float* tile) const override;
  void accumulate(const float* weight, int64_t ld, int n, BlockView block, Range range, float* acc,
                  float* tile) const override;
  void finish(const float* acc, int n, float* out) const final;

  int frame_dim() const { return frame_; }
  /// Rows [range) of a block in layout 0 in the codec's frame: out[row - range.begin][frame_dim()]. Codecs in row
  /// order.
  void decode_frame(const std::byte* block, Range range, float* out) const { unpack(block, range, out, frame_); }

 protected:
  TileCodec(std::string name, int dim, BlockFormat format, CodeOrder order,
            std::shared_ptr<const LinearMap> map = nullptr)
      : name_(std::move(name)),
        dim_(dim),
        frame_(map ? map->frame_dim() : dim),
        format_(format),
        order_(order),
        map_(std::move(map)),
        floats_{frame_, frame_, int64_t{2} * format.capacity_rows() * frame_} {}

  /// Gives the codec a layout 1. Blocks must be whole tiles.
  void set_tiles(std::unique_ptr<const TileAttention> tiles);

  /// Units [units) of a block in layout 0 into tile[row][channel] or, in channel order, tile[channel][row]; rows count
  /// from the first unit.
  virtual void unpack(const std::byte* block, Range units, float* tile, int64_t ld) const = 0;
  /// Codes of rows [rows) of a block in layout 0, codes[row - rows.begin][frame_dim()], and their way back; as they are
  /// here, bit strings in part 0.
  virtual void get_codes(const std::byte* block, Range rows, uint8_t* codes) const;
  virtual void put_codes(const uint8_t* codes, Range rows, std::byte* block) const;
  /// A whole block as codes, [row][channel] or, in channel order, [tile][channel][row], and parameters as they stand in
  /// layout 0.
  virtual void encode_tiles(const RowsView& rows, uint8_t* codes, std::byte* parameters) const;
  /// Parameters of a whole block, `plain` as they stand in layout 0, which is how they are kept here. False: these stay
  /// there.
  virtual bool seal_parameters(const std::byte* plain, std::byte* sealed) const;
  virtual void unseal_parameters(const std::byte* sealed, std::byte* plain) const;

  const LinearMap* map() const { return map_.get(); }

 private:
  struct ChannelTile {
    const float* first;  ///< channel 0 of the first row asked for
    int64_t ld;
  };
  /// Rows [range) in channel order; `tile` has room for two blocks.
  ChannelTile channels(const std::byte* block, Range range, float* tile) const;
  /// Rows [range) in row order, at out[row - range.begin]; `tile` has room for one block in channel order.
  void rows(const std::byte* block, Range range, float* out, int64_t ld, float* tile) const;
  template <class Visit>
  void for_each_tile(BlockView block, Range range, Visit&& visit) const;
  /// The block in layout 0: itself, or a copy that lives until the thread's next call.
  const std::byte* plain(BlockView block) const;
  size_t parameter_bytes() const;
  size_t parameter_offset() const;  ///< in layout 0; layout 1 begins with them
  bool tiled(BlockView block, Side side) const { return block.layout == 1 && tiles_->grid().side == side; }

  std::string name_;
  int dim_, frame_;
  BlockFormat format_;
  CodeOrder order_;
  std::shared_ptr<const LinearMap> map_;
  CodecFloats floats_;
  std::unique_ptr<const TileAttention> tiles_;
};

}  // namespace veloxquant
