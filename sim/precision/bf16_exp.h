// fp32 with every exp correctly rounded to bf16, as a kernel that keeps exp of the shifted logits in bf16.
#pragma once

#include "sim/precision/fp32.h"
#include "sim/precision/rounded.h"

namespace tpce::sim {

struct Bf16Exp : Fp32 {
  static constexpr Precision kPrecision = Precision::kBf16Exp;
  static Real exp(Real x) { return static_cast<float>(Rounded<Bf16Format>(std::exp(static_cast<double>(x)))); }
};

}  // namespace tpce::sim
