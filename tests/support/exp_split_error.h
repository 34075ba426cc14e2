// How far exp_split is from exp, and what its derivation allows (docs/accuracy.md, section 1).
#pragma once

#include <cmath>

#include "tests/support/mpfr_real.h"
#include "tpce/exp_split.h"

namespace tpce::testing {

// Relative error of p * 2^n, as a multiple of 2^-24: the bound of docs/numerics.md, section 2.
inline constexpr double kExpSplitBound = 1.51;

// Relative error of p * 2^n against exp(x) by MPFR, as a multiple of 2^-24. exp(x - n ln 2) stays near 1, where exp(x)
// itself would leave MPFR's range of exponents.
inline double exp_split_error(float x) {
  const ExpSplit y = exp_split(x);
  MpfrReal truth;
  mpfr_const_log2(truth.get(), MPFR_RNDN);
  mpfr_mul_si(truth.get(), truth.get(), -static_cast<long>(y.exponent), MPFR_RNDN);
  mpfr_add_d(truth.get(), truth.get(), static_cast<double>(x), MPFR_RNDN);
  mpfr_exp(truth.get(), truth.get(), MPFR_RNDN);
  MpfrReal error(static_cast<double>(y.mantissa));
  mpfr_sub(error.get(), error.get(), truth.get(), MPFR_RNDN);
  mpfr_div(error.get(), error.get(), truth.get(), MPFR_RNDN);
  return std::fabs(error.to_double()) * 0x1p24;
}

}  // namespace tpce::testing
