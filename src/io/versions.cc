#include "io/versions.h"

#include <Eigen/Core>
#include <fmt/format.h>
#include <hwy/highway.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

namespace veloxquant {

std::string library_versions() {
  const unsigned xxhash = XXH_versionNumber();
  return fmt::format("Highway {}.{}.{}, Eigen {}.{}.{}, fmt {}.{}.{}, nlohmann-json {}.{}.{}, xxHash {}.{}.{}",
                     HWY_MAJOR, HWY_MINOR, HWY_PATCH, EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION,
                     FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100, NLOHMANN_JSON_VERSION_MAJOR,
                     NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH, xxhash / 10000, xxhash / 100 % 100,
                     xxhash % 100);
}

}  // namespace veloxquant
