// How much random testing is worth its time under AddressSanitizer, which looks at the ways through the code, not at
// values.
#pragma once

namespace tpce::testing {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#else
inline constexpr bool kAddressSanitizer = false;
#endif

// A third of the problems.
constexpr int fewer_under_sanitizer(int problems) { return kAddressSanitizer ? (problems + 2) / 3 : problems; }

}  // namespace tpce::testing
