// A real number of MPFR that frees itself, and distances from it in ulp.
#pragma once

#include <mpfr.h>

#include <algorithm>
#include <cmath>

namespace tpce::testing {

class MpfrReal {
 public:
  // Three times fp64's significand: rounding here is far below any distance that is measured.
  static constexpr mpfr_prec_t kPrecision = 160;

  explicit MpfrReal(double value = 0.0) {
    mpfr_init2(value_, kPrecision);
    mpfr_set_d(value_, value, MPFR_RNDN);
  }
  ~MpfrReal() { mpfr_clear(value_); }
  MpfrReal(const MpfrReal&) = delete;
  MpfrReal& operator=(const MpfrReal&) = delete;

  mpfr_ptr get() { return value_; }
  mpfr_srcptr get() const { return value_; }
  double to_double() const { return mpfr_get_d(value_, MPFR_RNDN); }
  float to_float() const { return mpfr_get_flt(value_, MPFR_RNDN); }

 private:
  mpfr_t value_;
};

// |got - truth| in units of 2^unit_exponent.
inline double distance(double got, const MpfrReal& truth, long unit_exponent) {
  MpfrReal difference(got);
  mpfr_sub(difference.get(), difference.get(), truth.get(), MPFR_RNDN);
  mpfr_mul_2si(difference.get(), difference.get(), -unit_exponent, MPFR_RNDN);
  return std::fabs(difference.to_double());
}

// Exponent of the unit in the last place at truth, which is not zero, of a format with `digits` bits of significand and
// smallest subnormal 2^lowest.
inline long ulp_exponent(const MpfrReal& truth, long digits, long lowest) {
  return std::max(static_cast<long>(mpfr_get_exp(truth.get())) - digits, lowest);
}

// |got - truth| in ulp of fp64 and of fp32 at truth (subnormals: units of 2^-1074 and 2^-149).
inline double ulps_fp64(double got, const MpfrReal& truth) {
  return distance(got, truth, ulp_exponent(truth, 53, -1074));
}
inline double ulps_fp32(float got, const MpfrReal& truth) {
  return distance(static_cast<double>(got), truth, ulp_exponent(truth, 24, -149));
}

}  // namespace tpce::testing
