#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace veloxquant {

void check_failed(const char* file, int line, const char* condition, std::string_view values) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s %.*s\n", file, line, condition, static_cast<int>(values.size()),
               values.data());
  std::abort();
}

}  // namespace veloxquant
