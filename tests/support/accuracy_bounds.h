// Bounds of docs/accuracy.md in units that a test compares with.
#pragma once

#include <cstdint>

namespace tpce::testing {

// Relative error of S: the exponentials, and what falls below the third digit.
inline constexpr double kSumBound = 1.51 * 0x1p-24;
inline double truncation_ulps(std::int64_t vocab) {
  return static_cast<double>(vocab) * 0x1.6c8e8ep-22;
}  // V * 2^-21.49

// In ulp of fp32 (subnormals: units of 2^-149).
inline double loss_bound(std::int64_t vocab) { return 2.1 + truncation_ulps(vocab); }
inline double target_gradient_bound(std::int64_t vocab) { return 2.1 + truncation_ulps(vocab); }
inline double gradient_bound(std::int64_t vocab) { return 4.6 + truncation_ulps(vocab); }
// |sum of dz| / (g p_nt), where nothing is subnormal.
inline constexpr double kGradientSumBound = 2.5e-7;

}  // namespace tpce::testing
