// Option values as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "veloxquant/options.h"

namespace veloxquant {

/// null for None, lists nested as arrays are shaped, objects for maps.
nlohmann::ordered_json json_of(const OptionValue& value);

}  // namespace veloxquant
