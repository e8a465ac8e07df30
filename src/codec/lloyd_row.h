// lloyd_row for codecs that build on it: with a rotation that they share.
#pragma once

#include <memory>

#include "codec/map/orthogonal_map.h"
#include "codec/tile_codec.h"
#include "veloxquant/codecs.h"

namespace veloxquant {

std::shared_ptr<const OrthogonalMap> rotation_map(const LloydRow& options);
/// Arguments are not checked.
std::shared_ptr<const TileCodec> lloyd_row(const LloydRow& options, std::shared_ptr<const OrthogonalMap> rotation);

}  // namespace veloxquant
