// sign_sketch for codecs that build on it, and for tests: on any map.
#pragma once

#include <memory>

#include "codec/map/linear_map.h"
#include "codec/tile_codec.h"
#include "veloxquant/codecs.h"

namespace veloxquant {

/// Signs of map x and |x|; decoded scale * |x| * map^T signs.
std::shared_ptr<const TileCodec> sign_sketch(std::shared_ptr<const LinearMap> map, double scale, CodecRole role);

}  // namespace veloxquant
