// RAII over MPFI and MPFR. For the sources of this folder alone: the public headers do not need either.
#pragma once

#include <mpfi.h>
#include <mpfr.h>

#include <memory>

#include "reference/truth.h"

namespace tpce::reference {

class Number {
 public:
  explicit Number(mpfr_prec_t bits) { mpfr_init2(x_, bits); }
  ~Number() { mpfr_clear(x_); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  operator mpfr_ptr() { return x_; }
  operator mpfr_srcptr() const { return x_; }

 private:
  mpfr_t x_;
};

// A closed interval whose ends have `bits` bits. It is a point exactly when its value is known exactly.
class Interval {
 public:
  explicit Interval(mpfr_prec_t bits) { mpfi_init2(x_, bits); }
  ~Interval() { mpfi_clear(x_); }
  Interval(const Interval&) = delete;
  Interval& operator=(const Interval&) = delete;
  operator mpfi_ptr() { return x_; }
  operator mpfi_srcptr() const { return x_; }
  mpfr_ptr low() { return &x_->left; }
  mpfr_ptr high() { return &x_->right; }
  mpfr_srcptr low() const { return &x_->left; }
  mpfr_srcptr high() const { return &x_->right; }
  mpfr_prec_t bits() const { return mpfi_get_prec(x_); }
  bool is_point() const { return mpfr_equal_p(low(), high()) != 0; }

 private:
  mpfi_t x_;
};

// out = exp(x - y), enclosed.
void exp_of_difference(Interval& out, double x, double y);

// Rounds what lies in the interval. A point is rounded as it stands. Otherwise the value is taken to lie strictly
// between the ends and on no rounding border (docs/reference.md, "Exact values"), and is certified where all that lies
// there rounds to the same float and the same double. An undecided value is the rounding of the middle, not certified.
Value round_enclosed(const Interval& x);

}  // namespace tpce::reference
