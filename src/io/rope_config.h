// How a model's config.json says that keys and queries are rotated.
#pragma once

#include <optional>
#include <string_view>

#include "core/rope.h"
#include "io/config.h"

namespace veloxquant {

/// Of layers of one type (full_attention, sliding_attention, chunked_attention) with heads of `dim` channels; which
/// channels are pairs is not said. Nothing where no base is stated, and where angles depend on more than the position:
/// on the length of the context (dynamic, longrope), or on several positions (images).
std::optional<RopeParameters> rope_from_config(Config& config, std::string_view layer_type, int dim);

}  // namespace veloxquant
