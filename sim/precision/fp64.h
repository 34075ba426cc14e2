// Arithmetic in fp64. exp, log and log1p are those of the C library.
#pragma once

#include <cmath>

#include "sim/precision/precision.h"

namespace tpce::sim {

struct Fp64 {
  static constexpr Precision kPrecision = Precision::kFp64;
  using Real = double;
  static Real exp(Real x) { return std::exp(x); }
  static Real log(Real x) { return std::log(x); }
  static Real log1p(Real x) { return std::log1p(x); }
  static Real load(float logit) { return static_cast<double>(logit); }
  static double store(Real gradient) { return gradient; }
};

}  // namespace tpce::sim
