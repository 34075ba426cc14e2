// Distances in units in the last place of fp32.
#pragma once

#include <algorithm>
#include <cmath>

namespace tpce::testing {

// The unit in the last place of fp32 at x; 2^-149 for subnormals and zero.
inline double ulp_fp32(double x) {
  if (x == 0.0) return 0x1p-149;
  return std::ldexp(1.0, std::max(std::ilogb(x) - 23, -149));
}

// |a - b| in ulp of the larger of the two; 0 where both are the same infinity or both are NaN.
inline double ulps_between(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0.0;
  if (!std::isfinite(a) || !std::isfinite(b)) return INFINITY;
  return std::fabs(a - b) / ulp_fp32(std::max(std::fabs(a), std::fabs(b)));
}

}  // namespace tpce::testing
