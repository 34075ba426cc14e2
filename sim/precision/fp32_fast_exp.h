// fp32 with exp(x) as exp2 of x log2(e), the product rounded to fp32, as CUDA's __expf.
//
// Its error is 2 ulp only where |x| is small: the product is rounded by half an ulp, up to |x| log2(e) 2^-24, and
// log2(e) itself by 1.4e-9 of it, which exp2 turns into a relative error of |x| (2^-24 + 0.2 2^-24) at most, in
// ulp 1.2 |x| besides exp2's own. CUDA's guide gives 2 + floor(|1.173 x|) ulp for __expf.
#pragma once

#include "sim/precision/fp32.h"

namespace tpce::sim {

struct Fp32FastExp : Fp32 {
  static constexpr Precision kPrecision = Precision::kFp32FastExp;
  static Real exp(Real x) { return std::exp2(x * 0x1.715476p+0f); }
};

}  // namespace tpce::sim
