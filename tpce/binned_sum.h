// Binned sum: an exact, order-free sum of values y = p * 2^n on an absolute grid of bins of 23 bits (docs/numerics.md,
// section 3; after Demmel, Ahrens and Nguyen, "Efficient Reproducible Floating Point Summation and BLAS", 2016).
//
// Bin b counts multiples of Q_b = 2^(23 b). A sum keeps three digits, the counts of Q_b, Q_(b-1) and Q_(b-2), where b
// is the top bin of its largest term. The digit of a value at an absolute bin does not depend on b, so sums merge in
// any order and any grouping with the same result. What is dropped below Q_(b-2) is at most 2^-45.49 of the largest
// term, for each term. int64 digits hold 2^40 terms.
#pragma once

#include "tpce/dtype.h"

namespace tpce {

inline constexpr std::int32_t kBinBits = 23;

// b(n) = floor((n + 1) / 23), so that |y| < 2^(n + 1) stays below half of Q_(b + 1). |n| <= 2^31 - 2.
TPCE_HOST_DEVICE inline std::int32_t bin_of_exponent(std::int32_t n) {
  const std::int32_t shifted = n + 1;
  return shifted >= 0 ? shifted / kBinBits : -1 - (-1 - shifted) / kBinBits;
}

// Digits of a value or of a sum, from the top bin down.
struct Digits {
  std::int64_t d0 = 0;
  std::int64_t d1 = 0;
  std::int64_t d2 = 0;

  friend bool operator==(const Digits& a, const Digits& b) { return a.d0 == b.d0 && a.d1 == b.d1 && a.d2 == b.d2; }
};

TPCE_HOST_DEVICE inline void add(Digits& sum, const Digits& term) {
  sum.d0 += term.d0;
  sum.d1 += term.d1;
  sum.d2 += term.d2;
}

// The digits of a sum whose top bin rises by `places` >= 0; what falls off the end is dropped.
TPCE_HOST_DEVICE inline Digits raised(const Digits& digits, std::int64_t places) {
  if (places == 0) return digits;
  if (places == 1) return {0, digits.d0, digits.d1};
  if (places == 2) return {0, 0, digits.d0};
  return {};
}

// Digits of y = p * 2^n below top bin b >= b(n), |p| < 2. Every step is exact: p has 24 bits, and fp64 holds 53.
TPCE_HOST_DEVICE inline Digits digits_of(float p, std::int32_t n, std::int32_t b) {
  const std::int64_t shift = std::int64_t{n} - std::int64_t{kBinBits} * b;  // y = p * 2^shift * Q_b
  if (shift < -2 * kBinBits - 2) return {};                                 // |y| < Q_(b-2) / 2
  constexpr double kRoundMagic = 0x1.8p52;
  constexpr double kBin = 0x1p23;
  double r = static_cast<double>(p) * bit_cast<double>(static_cast<std::uint64_t>(shift + 1023) << 52);
  const double d0 = (r + kRoundMagic) - kRoundMagic;
  r = (r - d0) * kBin;
  const double d1 = (r + kRoundMagic) - kRoundMagic;
  r = (r - d1) * kBin;
  const double d2 = (r + kRoundMagic) - kRoundMagic;
  return {static_cast<std::int64_t>(d0), static_cast<std::int64_t>(d1), static_cast<std::int64_t>(d2)};
}

// The value of digits in units of Q_b, rounded to fp64. The nesting is part of the definition.
TPCE_HOST_DEVICE inline double value_of(const Digits& digits) {
  return static_cast<double>(digits.d0) +
         (static_cast<double>(digits.d1) * 0x1p-23 + static_cast<double>(digits.d2) * 0x1p-46);
}

// An order-free sum of fp32 terms of either sign: row losses, squares of gradients. States form a commutative monoid
// under merge; a default-constructed one is its identity.
struct BinnedSum {
  static constexpr std::uint32_t kNan = 1;
  static constexpr std::uint32_t kPositiveInfinity = 2;
  static constexpr std::uint32_t kNegativeInfinity = 4;
  static constexpr std::int32_t kEmptyBin = -0x7fffffff;

  Digits digits;
  std::int32_t bin = kEmptyBin;
  std::uint32_t flags = 0;  // of the non-finite terms seen, which the digits leave out

  friend bool operator==(const BinnedSum& a, const BinnedSum& b) {
    return a.digits == b.digits && a.bin == b.bin && a.flags == b.flags;
  }
};

TPCE_HOST_DEVICE inline void merge(BinnedSum& into, const BinnedSum& from) {
  into.flags |= from.flags;
  if (from.bin == BinnedSum::kEmptyBin) return;
  if (into.bin == BinnedSum::kEmptyBin) {
    into.digits = from.digits;
    into.bin = from.bin;
    return;
  }
  const std::int32_t bin = into.bin > from.bin ? into.bin : from.bin;
  into.digits = raised(into.digits, std::int64_t{bin} - into.bin);
  add(into.digits, raised(from.digits, std::int64_t{bin} - from.bin));
  into.bin = bin;
}

// Adds y * 2^exponent, |exponent| <= 2^20. A zero adds nothing; NaN and infinities are kept as flags.
TPCE_HOST_DEVICE inline void add(BinnedSum& sum, float y, std::int32_t exponent = 0) {
  if (is_nan(y)) {
    sum.flags |= BinnedSum::kNan;
    return;
  }
  if (y - y != 0.0f) {
    sum.flags |= y > 0.0f ? BinnedSum::kPositiveInfinity : BinnedSum::kNegativeInfinity;
    return;
  }
  if (y == 0.0f) return;
  if (-0x1p-126f < y && y < 0x1p-126f) {  // subnormal
    y *= 0x1p64f;
    exponent -= 64;
  }
  const std::uint32_t bits = bit_cast<std::uint32_t>(y);
  const std::int32_t n = static_cast<std::int32_t>((bits >> 23) & 0xffu) - 127 + exponent;  // floor(log2 |y|)
  const float p = bit_cast<float>((bits & 0x807fffffu) | 0x3f800000u);
  const std::int32_t bin = bin_of_exponent(n);
  merge(sum, BinnedSum{digits_of(p, n, bin), bin, 0});
}

// Adds x^2, rounded to 24 bits with the exponent kept apart, so that no square overflows or underflows.
TPCE_HOST_DEVICE inline void add_square(BinnedSum& sum, float x) {
  if (x - x != 0.0f) {  // NaN or infinite
    add(sum, is_nan(x) ? x : x * x);
    return;
  }
  if (x == 0.0f) return;
  std::int32_t exponent = 0;
  if (-0x1p-126f < x && x < 0x1p-126f) {
    x *= 0x1p64f;
    exponent = -64;
  }
  const std::uint32_t bits = bit_cast<std::uint32_t>(x);
  const float p = bit_cast<float>((bits & 0x007fffffu) | 0x3f800000u);
  exponent += static_cast<std::int32_t>((bits >> 23) & 0xffu) - 127;
  add(sum, p * p, 2 * exponent);
}

// The sum, rounded to fp64; NaN and infinities as IEEE addition would give them. Terms up to fp32's squares keep it
// inside fp64's normal range.
TPCE_HOST_DEVICE inline double value_of(const BinnedSum& sum) {
  constexpr std::uint32_t kBothInfinities = BinnedSum::kPositiveInfinity | BinnedSum::kNegativeInfinity;
  if ((sum.flags & BinnedSum::kNan) != 0 || (sum.flags & kBothInfinities) == kBothInfinities) {
    return bit_cast<double>(std::uint64_t{0x7ff8000000000000});
  }
  if ((sum.flags & BinnedSum::kPositiveInfinity) != 0) return bit_cast<double>(std::uint64_t{0x7ff0000000000000});
  if ((sum.flags & BinnedSum::kNegativeInfinity) != 0) return bit_cast<double>(std::uint64_t{0xfff0000000000000});
  if (sum.bin == BinnedSum::kEmptyBin) return 0.0;
  const std::int64_t exponent = std::int64_t{kBinBits} * sum.bin;
  return value_of(sum.digits) * bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52) + 0.0;
}

}  // namespace tpce
