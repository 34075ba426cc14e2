// How a quantity grows: the exponent of a power law, with its uncertainty.
#pragma once

#include <limits>
#include <span>
#include <string>

namespace tpce::sim {

struct GrowthPoint {
  double x;       // above 0
  double y;       // left out unless finite and above 0
  double weight;  // how many observations y rests on
};

struct Growth {
  double exponent = std::numeric_limits<double>::quiet_NaN();
  // Of the exponent, from how far the points lie from the line; infinite with fewer than 3 points.
  double standard_error = std::numeric_limits<double>::infinity();

  double half_width() const { return 2 * standard_error; }
  // The interval of two standard errors holds 0.
  bool may_be_none() const { return !(exponent < -half_width() || exponent > half_width()); }
};

// The slope of log y over log x, by weighted least squares.
Growth growth_of(std::span<const GrowthPoint> points);

// The slope between two points whose y are root mean squares of `weight` errors each. A root mean square of n normal
// errors has the relative standard error 1 / sqrt(2 n).
Growth slope_between(const GrowthPoint& a, const GrowthPoint& b);

// Two decimals; what rounds to 0 has no sign.
std::string exponent_text(double exponent);

// "grows as V^(1.15 +- 0.06)", "falls as ..." or "shows no growth with V (V^(-0.03 +- 0.05))"; +- two standard errors.
std::string growth_text(const Growth& growth);

}  // namespace tpce::sim
