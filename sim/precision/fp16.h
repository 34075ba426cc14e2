// Arithmetic in fp16.
#pragma once

#include "sim/precision/precision.h"
#include "sim/precision/rounded.h"

namespace tpce::sim {

struct Fp16 : RoundedArithmetic<Fp16Format> {
  static constexpr Precision kPrecision = Precision::kFp16;
};

}  // namespace tpce::sim
