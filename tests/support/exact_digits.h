// The digits of a binned sum by integers of GMP, without a single floating-point addition.
#pragma once

#include <gmpxx.h>

#include <cmath>
#include <cstdint>

#include "tpce/binned_sum.h"

namespace tpce::testing {

// What digits say, in units of Q_(b-2), without rounding.
inline mpz_class integer_of(const Digits& digits) {
  mpz_class sum = mpz_class(static_cast<long>(digits.d0)) << (2 * kBinBits);
  sum += mpz_class(static_cast<long>(digits.d1)) << kBinBits;
  return sum + static_cast<long>(digits.d2);
}

// RN, ties to even, of y * 2^exponent, by integers alone.
inline mpz_class nearest_integer(float y, std::int64_t exponent) {
  int own;
  const double fraction = std::frexp(static_cast<double>(y), &own);
  mpz_class significand(std::ldexp(fraction, 24));
  exponent += own - 24;
  if (exponent >= 0) return significand << static_cast<unsigned long>(exponent);
  if (exponent < -64) return 0;
  const mpz_class divisor = mpz_class(1) << static_cast<unsigned long>(-exponent);
  mpz_class floor, rest;
  mpz_fdiv_qr(floor.get_mpz_t(), rest.get_mpz_t(), significand.get_mpz_t(), divisor.get_mpz_t());
  rest *= 2;
  const bool up = rest > divisor || (rest == divisor && mpz_odd_p(floor.get_mpz_t()));
  return up ? floor + 1 : floor;
}

}  // namespace tpce::testing
