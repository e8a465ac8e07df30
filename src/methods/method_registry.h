// What the registry lends to the construction of caches.
#pragma once

#include <string>

#include "veloxquant/registry.h"

namespace veloxquant {

/// "gear can be configured but not built yet (methods that can: ...)"
std::string not_there_yet(const MethodDef& def);

}  // namespace veloxquant
