// What this library was built from.
#pragma once

#include <string>
#include <string_view>

namespace veloxquant {

/// Of this project; a test compares it with CMakeLists.txt.
inline constexpr std::string_view kVersion = "0.1.0";

/// "Highway 1.0.3, Eigen 3.4.0, ...": the libraries that were compiled in or linked.
std::string library_versions();

}  // namespace veloxquant
