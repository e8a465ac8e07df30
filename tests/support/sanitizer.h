// Sizes under a sanitizer, where every step takes many times longer.
#pragma once

namespace veloxquant::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

constexpr int sized(int full, int sanitized) { return kSanitized ? sanitized : full; }

}  // namespace veloxquant::test
