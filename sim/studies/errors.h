// Errors of many values, gathered.
#pragma once

#include <cmath>
#include <cstdint>

namespace tpce::sim {

// The larger of two numbers, NaN where one of them is: with std::max a method that returns NaN would be one without
// error.
inline double larger(double a, double b) { return a < b || std::isnan(b) ? b : a; }

// |found - exact| in units in the last place of the exact value, which is not 0, at `bits` bits of significand.
inline double ulps_apart(long double found, long double exact, int bits) {
  return static_cast<double>(std::abs(found - exact) / std::ldexp(1.0L, std::ilogb(exact) - (bits - 1)));
}

// Of the canonical loss and its target gradient: the bound that docs/accuracy.md derives, in ulp.
inline double canonical_bound_ulp(std::int64_t vocab) { return 2.1 + static_cast<double>(vocab) * std::exp2(-21.49); }

struct ErrorStatistics {
  double squares = 0.0;
  double largest = 0.0;
  std::int64_t count = 0;

  void add(double error) {
    squares += error * error;
    largest = larger(largest, error);
    ++count;
  }
  double rms() const { return count > 0 ? std::sqrt(squares / static_cast<double>(count)) : 0.0; }
};

}  // namespace tpce::sim
