// bf16 in memory, fp32 in registers: logits are rounded to bf16 before the first operation, gradients after the last.
#pragma once

#include "sim/precision/fp32.h"
#include "sim/precision/rounded.h"

namespace tpce::sim {

struct Bf16Storage : Fp32 {
  static constexpr Precision kPrecision = Precision::kBf16Storage;
  static Real load(float logit) { return static_cast<float>(Rounded<Bf16Format>(logit)); }
  static double store(Real gradient) { return static_cast<double>(Rounded<Bf16Format>(gradient)); }
};

}  // namespace tpce::sim
