// Arithmetic in fp32. exp, log and log1p are those of the C library.
#pragma once

#include <cmath>

#include "sim/precision/precision.h"

namespace tpce::sim {

struct Fp32 {
  static constexpr Precision kPrecision = Precision::kFp32;
  using Real = float;
  static Real exp(Real x) { return std::exp(x); }
  static Real log(Real x) { return std::log(x); }
  static Real log1p(Real x) { return std::log1p(x); }
  static Real load(float logit) { return logit; }
  static double store(Real gradient) { return static_cast<double>(gradient); }
};

}  // namespace tpce::sim
