// MPFR values to Value. For the sources of this folder alone: the public headers do not need MPFR.
#pragma once

#include <mpfr.h>

#include "reference/truth.h"

namespace tpce::reference {

// x rounded to nearest, ties to even, once to fp64 and once to fp32, subnormals and overflow included; zeros are +0.
inline Value round_once(mpfr_srcptr x) {
  return {mpfr_get_d(x, MPFR_RNDN) + 0.0, mpfr_get_flt(x, MPFR_RNDN) + 0.0f, false};
}

}  // namespace tpce::reference
