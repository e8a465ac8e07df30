// Broken invariants of ours abort with file, line and values, in every build type.
#pragma once

#include <string_view>

namespace veloxquant {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view values = {});

}  // namespace veloxquant

#define VQ_CHECK(condition, ...)                                                             \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::veloxquant::check_failed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
