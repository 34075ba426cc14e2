// exp_split: x -> (p, n) with exp(x) = p * 2^n, the one exponential of the canonical algorithm (docs/numerics.md,
// section 2). It never overflows and never underflows, since n stays an integer.
//
//   precondition  |x| <= 2^30
//   p             in [0.706, 1.417]
//   n             at most 1,549,082,005 in magnitude; monotone in x over the whole range, across 2^16 too
//   error         |p - 2^f| / 2^f <= 1.51 * 2^-24
//   operations    9 FMA, 1 subtraction (below 2^16)
#pragma once

#include "tpce/platform.h"

namespace tpce {

struct ExpSplit {
  float mantissa;         // p
  std::int32_t exponent;  // n
};

namespace exp_split_constants {

// log2(e) in fp32, and what that leaves out.
inline constexpr float kLog2e = 0x1.715476p+0f;
inline constexpr float kLog2eRest = 0x1.4ae0c0p-26f;
// The same in fp64.
inline constexpr double kLog2eWide = 0x1.71547652b82fep+0;
inline constexpr double kLog2eWideRest = 0x1.777d0ffda0d24p-56;

// Adding 1.5 * 2^(fraction bits) rounds to an integer, ties to even, in the default rounding mode.
inline constexpr float kRoundMagic = 0x1.8p23f;
inline constexpr double kRoundMagicWide = 0x1.8p52;

// Where the fp32 reduction ends: beyond, n no longer fits the 22 bits that kRoundMagic leaves.
inline constexpr float kNarrowLimit = 0x1p16f;

// Minimax polynomial of 2^f on |f| <= 0.502 with constant term 1, lowest degree first.
inline constexpr float kC1 = 0x1.62e43p-1f;
inline constexpr float kC2 = 0x1.ebfbd8p-3f;
inline constexpr float kC3 = 0x1.c6af74p-5f;
inline constexpr float kC4 = 0x1.3b309ap-7f;
inline constexpr float kC5 = 0x1.5f0d4ep-10f;
inline constexpr float kC6 = 0x1.3f9ffep-13f;

}  // namespace exp_split_constants

// 2^f for |f| <= 0.502: the polynomial of exp_split.
TPCE_ALWAYS_INLINE float exp2_polynomial(float f) {
  using namespace exp_split_constants;
  float p = fused_multiply_add(f, kC6, kC5);
  p = fused_multiply_add(f, p, kC4);
  p = fused_multiply_add(f, p, kC3);
  p = fused_multiply_add(f, p, kC2);
  p = fused_multiply_add(f, p, kC1);
  return fused_multiply_add(f, p, 1.0f);
}

// The element's own magnitude chooses the reduction, never a block's maximum and never a clamped value: otherwise the
// digits of one value would depend on its neighbours.
TPCE_ALWAYS_INLINE ExpSplit exp_split(float x) {
  using namespace exp_split_constants;
  if (-kNarrowLimit < x && x < kNarrowLimit) {
    const float t = fused_multiply_add(x, kLog2e, kRoundMagic);
    const float n = t - kRoundMagic;
    float f = fused_multiply_add(x, kLog2e, -n);
    f = fused_multiply_add(x, kLog2eRest, f);
    return {exp2_polynomial(f), static_cast<std::int32_t>(n)};
  }
  const double wide = x;
  const double t = fused_multiply_add(wide, kLog2eWide, kRoundMagicWide);
  const double n = t - kRoundMagicWide;
  double f = fused_multiply_add(wide, kLog2eWide, -n);
  f = fused_multiply_add(wide, kLog2eWideRest, f);
  return {exp2_polynomial(static_cast<float>(f)), static_cast<std::int32_t>(n)};
}

}  // namespace tpce
