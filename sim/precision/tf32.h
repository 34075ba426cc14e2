// Arithmetic in tf32, the format that NVIDIA's tensor cores read: 11 bits with the exponents of fp32.
#pragma once

#include "sim/precision/precision.h"
#include "sim/precision/rounded.h"

namespace tpce::sim {

struct Tf32 : RoundedArithmetic<Tf32Format> {
  static constexpr Precision kPrecision = Precision::kTf32;
};

}  // namespace tpce::sim
