// From a precision to its arithmetic: a number type Real that rounds every operation, exp, log and log1p that round
// with it, load from an fp32 logit and store of a gradient. Another precision is one more struct of this shape, an
// entry in kPrecisions (precision.h) and a line here.
#pragma once

#include <stdexcept>

#include "sim/precision/bf16.h"
#include "sim/precision/bf16_exp.h"
#include "sim/precision/bf16_storage.h"
#include "sim/precision/fp16.h"
#include "sim/precision/fp32.h"
#include "sim/precision/fp32_fast_exp.h"
#include "sim/precision/fp64.h"
#include "sim/precision/precision.h"
#include "sim/precision/tf32.h"

namespace tpce::sim {

// f(arithmetic), with an object of the precision's arithmetic that is good for its type.
template <class F>
auto visit_precision(Precision precision, F&& f) {
  switch (precision) {
    case Precision::kFp32:
      return f(Fp32{});
    case Precision::kFp64:
      return f(Fp64{});
    case Precision::kBf16:
      return f(Bf16{});
    case Precision::kFp16:
      return f(Fp16{});
    case Precision::kTf32:
      return f(Tf32{});
    case Precision::kBf16Storage:
      return f(Bf16Storage{});
    case Precision::kBf16Exp:
      return f(Bf16Exp{});
    case Precision::kFp32FastExp:
      return f(Fp32FastExp{});
  }
  throw std::invalid_argument("precision: got a number that is none");
}

}  // namespace tpce::sim
