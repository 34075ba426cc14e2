#include "reference/interval.h"

#include <limits>

#include "reference/rounding.h"

namespace tpce::reference {
namespace {

static_assert(std::numeric_limits<double>::is_iec559 && std::numeric_limits<float>::is_iec559);

// MPFR keeps constants such as log 2 for each thread; a thread that ends must free its own.
struct ThreadCache {
  ~ThreadCache() { mpfr_free_cache2(MPFR_FREE_LOCAL_CACHE); }
  void touch() const {}
};
thread_local const ThreadCache thread_cache;

}  // namespace

void exp_of_difference(Interval& out, double x, double y) {
  thread_cache.touch();
  const mpfr_prec_t bits = out.bits();
  Number from(std::numeric_limits<double>::digits);
  Number low(bits);
  mpfr_set_d(from, x, MPFR_RNDN);
  if (mpfr_sub_d(low, from, y, MPFR_RNDD) == 0) {
    // One exponential serves both ends: the value lies above low's rounding by less than one unit in its last place.
    const int inexact = mpfr_exp(out.low(), low, MPFR_RNDD);
    mpfr_set(out.high(), out.low(), MPFR_RNDN);
    if (inexact != 0) mpfr_nextabove(out.high());
    return;
  }
  Number high(bits);
  mpfr_sub_d(high, from, y, MPFR_RNDU);
  mpfr_exp(out.low(), low, MPFR_RNDD);
  mpfr_exp(out.high(), high, MPFR_RNDU);
}

Value round_enclosed(const Interval& x) {
  if (x.is_point()) {
    Value value = round_once(x.low());
    value.certified = true;
    return value;
  }
  // With one bit more, the neighbours inside the ends are no rounding borders, and none lies between them and the ends.
  Number low(x.bits() + 1);
  Number high(x.bits() + 1);
  mpfr_set(low, x.low(), MPFR_RNDN);
  mpfr_set(high, x.high(), MPFR_RNDN);
  mpfr_nextabove(low);
  mpfr_nextbelow(high);
  const Value from = round_once(low);
  const Value to = round_once(high);
  if (from.fp64 == to.fp64 && from.fp32 == to.fp32) return {from.fp64, from.fp32, true};
  Number middle(x.bits() + 1);
  mpfr_add(middle, low, high, MPFR_RNDN);
  mpfr_div_2ui(middle, middle, 1, MPFR_RNDN);
  return round_once(middle);
}

}  // namespace tpce::reference
