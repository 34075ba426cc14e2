// Arithmetic in bf16.
#pragma once

#include "sim/precision/precision.h"
#include "sim/precision/rounded.h"

namespace tpce::sim {

struct Bf16 : RoundedArithmetic<Bf16Format> {
  static constexpr Precision kPrecision = Precision::kBf16;
};

}  // namespace tpce::sim
