// exp, log and log1p in fp64, built only from +, -, *, /, FMA and bit operations, so that no C library and no CUDA math
// library decides a bit of a result. Each error is below 1 ulp (derived in docs/accuracy.md, measured in
// tests/tpce/fp64_math_test.cc). The polynomials are Taylor series, long enough that what they leave out is below 2^-57
// of the result: their coefficients need no source beyond the factorials and the odd numbers.
#pragma once

#include "tpce/platform.h"

namespace tpce {

namespace fp64_constants {

inline constexpr double kLog2e = 0x1.71547652b82fep+0;
// ln 2 as the nearest fp64 and what that leaves out.
inline constexpr double kLn2High = 0x1.62e42fefa39efp-1;
inline constexpr double kLn2Low = 0x1.abc9e3b39803fp-56;
// ln 2 cut after 32 significant bits, so that its product with an integer below 2^20 is exact, and what that leaves
// out.
inline constexpr double kLn2Short = 0x1.62e42feep-1;
inline constexpr double kLn2ShortRest = 0x1.a39ef35793c76p-33;
inline constexpr double kRoundMagic = 0x1.8p52;

}  // namespace fp64_constants

// 2^exponent for -1022 <= exponent <= 1023, exactly.
TPCE_HOST_DEVICE inline double power_of_two(std::int64_t exponent) {
  return bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// exp(x) for x <= 0, -inf included. Subnormal results are rounded twice, which costs at most one more unit of 2^-1074.
TPCE_ALWAYS_INLINE double exp_fp64(double x) {
  using namespace fp64_constants;
  if (!(x > -746.0)) return 0.0;  // exp(-745.14) is half of 2^-1074
  const double k = fused_multiply_add(x, kLog2e, kRoundMagic) - kRoundMagic;
  // The reduced argument as high + low, |high| <= ln(2) / 2: k * kLn2Short is exact, and so is the first subtraction.
  const double exact = fused_multiply_add(-k, kLn2Short, x);
  const double rest = k * kLn2ShortRest;
  const double high = exact - rest;
  const double low = (exact - high) - rest;
  // exp(r) = 1 + (r + r^2 q(r)), q = sum r^i / (i + 2)!
  double q = 1.0 / 6227020800.0;
  q = fused_multiply_add(q, high, 1.0 / 479001600.0);
  q = fused_multiply_add(q, high, 1.0 / 39916800.0);
  q = fused_multiply_add(q, high, 1.0 / 3628800.0);
  q = fused_multiply_add(q, high, 1.0 / 362880.0);
  q = fused_multiply_add(q, high, 1.0 / 40320.0);
  q = fused_multiply_add(q, high, 1.0 / 5040.0);
  q = fused_multiply_add(q, high, 1.0 / 720.0);
  q = fused_multiply_add(q, high, 1.0 / 120.0);
  q = fused_multiply_add(q, high, 1.0 / 24.0);
  q = fused_multiply_add(q, high, 1.0 / 6.0);
  q = fused_multiply_add(q, high, 0.5);
  const double tail = fused_multiply_add(high * high, q, low);
  const double reduced = 1.0 + (high + tail);
  const std::int64_t exponent = static_cast<std::int64_t>(k);
  if (exponent < -1000) return reduced * power_of_two(exponent + 100) * 0x1p-100;
  return reduced * power_of_two(exponent);
}

namespace fp64_detail {

// log((1 + f) * (1 + c / (1 + f))) + k ln 2, where 1 + f in [sqrt(1/2), sqrt(2)] and |c| <= 2^-53.
// With s = f / (2 + f): log(1 + f) = 2 s + s^3 R(s^2) = f - (f^2/2 - s (f^2/2 + s^2 R(s^2))), R = sum 2 s^(2i) / (2i +
// 3).
TPCE_ALWAYS_INLINE double log_reduced(double f, double c, double k) {
  using namespace fp64_constants;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double r = 2.0 / 23.0;
  r = fused_multiply_add(r, z, 2.0 / 21.0);
  r = fused_multiply_add(r, z, 2.0 / 19.0);
  r = fused_multiply_add(r, z, 2.0 / 17.0);
  r = fused_multiply_add(r, z, 2.0 / 15.0);
  r = fused_multiply_add(r, z, 2.0 / 13.0);
  r = fused_multiply_add(r, z, 2.0 / 11.0);
  r = fused_multiply_add(r, z, 2.0 / 9.0);
  r = fused_multiply_add(r, z, 2.0 / 7.0);
  r = fused_multiply_add(r, z, 2.0 / 5.0);
  r = fused_multiply_add(r, z, 2.0 / 3.0);
  const double half_square = 0.5 * f * f;
  const double correction =
      fused_multiply_add(s, fused_multiply_add(r, z, half_square), fused_multiply_add(k, kLn2ShortRest, c));
  return fused_multiply_add(k, kLn2Short, f - (half_square - correction));
}

inline constexpr double kSqrt2 = 0x1.6a09e667f3bcdp+0;

}  // namespace fp64_detail

// log(x) for a positive, finite, normal x.
TPCE_ALWAYS_INLINE double log_fp64(double x) {
  const std::uint64_t bits = bit_cast<std::uint64_t>(x);
  std::int64_t k = static_cast<std::int64_t>(bits >> 52) - 1023;
  double significand = bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (significand > fp64_detail::kSqrt2) {
    significand *= 0.5;
    k += 1;
  }
  return fp64_detail::log_reduced(significand - 1.0, 0.0, static_cast<double>(k));
}

// log1p(x) = log(1 + x) for 0 <= x <= 1.
TPCE_ALWAYS_INLINE double log1p_fp64(double x) {
  if (x < 0x1.ap-2) return fp64_detail::log_reduced(x, 0.0, 0.0);  // 1 + x < sqrt(2): f is x itself
  const double u = 1.0 + x;
  const double lost = x - (u - 1.0);
  if (u > fp64_detail::kSqrt2) return fp64_detail::log_reduced(0.5 * u - 1.0, lost / u, 1.0);
  return fp64_detail::log_reduced(u - 1.0, lost / u, 0.0);
}

}  // namespace tpce
