// Numbers of a narrow binary format whose every operation is rounded to it, to nearest, ties to even.
//
// An operation is done in fp64 and then rounded to the format, and the result is that of one rounding. Let p be the
// format's bits, at most 11, and x the exact result for numbers a, b of the format. Both roundings are monotone, and
// the midpoints of neighbouring numbers of the format have at most p + 1 bits, so fp64 holds them: the first rounding
// moves x across none. It does harm only if it moves x onto a midpoint m that x is not, so only if 0 < |x - m| <= 2^-53
// |m|.
//  - Product: x has at most 2 p <= 22 bits, so fp64 holds it. It is at least 2^-298 in size: no subnormal of fp64.
//  - Quotient: x - m = (a - m b) / b. As multiples of the last places of their factors, a - m b is 0 or at least the
//    smaller of 2^-p |a| and 2^-(2 p + 1) |m b|, so |x - m| is 0 or about 2^-23 |m| at least.
//  - Sum and difference: x is a multiple of the last place of the smaller operand b. If fp64 does not hold x, |b| is
//    below 2^(p - 52) |x|: too small to bring x from a, which the format holds, near a midpoint, 2^-(p + 1) |a| away.
// Nothing here asks for the lower end of the format's exponents, so subnormal results are covered: their midpoints have
// fewer bits still. Figueroa ("When is double rounding innocuous?", 1995) states it as P >= 2 p + 2, for normal
// results. fp32 has that for p = 11 too, 24 >= 24, but its own subnormals would round products of tf32 near 2^-137
// twice (tests/sim/precision_test.cc).
#pragma once

#include <bit>
#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>

namespace tpce::sim {

// kBits counts the hidden bit; kMinExponent and kMaxExponent are those of the smallest and the largest normal numbers.
struct Bf16Format {
  static constexpr int kBits = 8, kMinExponent = -126, kMaxExponent = 127;
};
struct Fp16Format {
  static constexpr int kBits = 11, kMinExponent = -14, kMaxExponent = 15;
};
struct Tf32Format {
  static constexpr int kBits = 11, kMinExponent = -126, kMaxExponent = 127;
};

// The number of the format nearest to x, ties to even, subnormals kept; infinite beyond the largest by half an ulp.
template <class Format>
double round_to_format(double x) {
  constexpr std::uint64_t kExponentMask = 0x7ff;
  constexpr std::uint64_t kLowest = static_cast<std::uint64_t>(Format::kMinExponent + 1023);
  constexpr std::uint64_t kHighest = static_cast<std::uint64_t>(Format::kMaxExponent + 1023);
  constexpr double kMax = (2.0 - 1.0 / (1 << (Format::kBits - 1))) * std::bit_cast<double>(kHighest << 52);
  const std::uint64_t exponent = (std::bit_cast<std::uint64_t>(x) >> 52) & kExponentMask;
  if (exponent == kExponentMask) return x;  // infinite or NaN
  if (exponent > kHighest) return std::copysign(std::numeric_limits<double>::infinity(), x);
  // Added to x, 3/2 2^52 ulp leaves a sum whose unit in the last place is the format's: the addition rounds.
  constexpr std::uint64_t kShift = 52 - (Format::kBits - 1), kHalf = std::uint64_t{1} << 51;
  const double shift = std::bit_cast<double>((((exponent < kLowest ? kLowest : exponent) + kShift) << 52) | kHalf);
  const double rounded = (x + shift) - shift;
  if (std::abs(rounded) > kMax) return std::copysign(std::numeric_limits<double>::infinity(), x);
  return std::copysign(rounded, x);
}

// A number of the format. Construction from another type rounds.
template <class Format>
class Rounded {
 public:
  Rounded() = default;
  explicit Rounded(float x) : Rounded(static_cast<double>(x)) {}
  explicit Rounded(double x) : value_(static_cast<float>(round_to_format<Format>(x))) {}

  // Exact: fp32 holds every number of these formats.
  explicit operator float() const { return value_; }
  explicit operator double() const { return static_cast<double>(value_); }

  friend Rounded operator+(Rounded a, Rounded b) { return Rounded(double(a) + double(b)); }
  friend Rounded operator-(Rounded a, Rounded b) { return Rounded(double(a) - double(b)); }
  friend Rounded operator*(Rounded a, Rounded b) { return Rounded(double(a) * double(b)); }
  friend Rounded operator/(Rounded a, Rounded b) { return Rounded(double(a) / double(b)); }
  friend Rounded operator-(Rounded a) {
    a.value_ = -a.value_;
    return a;
  }
  friend bool operator==(Rounded a, Rounded b) { return a.value_ == b.value_; }
  friend std::partial_ordering operator<=>(Rounded a, Rounded b) { return a.value_ <=> b.value_; }

 private:
  float value_ = 0.0f;
};

// exp, log and log1p in fp64, rounded once more to the format. fp64's are within an ulp, and no value of theirs lies so
// close to a midpoint of the format that this matters: tests/sim/precision_test.cc compares every input with MPFR.
template <class Format>
struct RoundedArithmetic {
  using Real = Rounded<Format>;
  static Real exp(Real x) { return Real(std::exp(double(x))); }
  static Real log(Real x) { return Real(std::log(double(x))); }
  static Real log1p(Real x) { return Real(std::log1p(double(x))); }
  static Real load(float logit) { return Real(logit); }
  static double store(Real gradient) { return double(gradient); }
};

}  // namespace tpce::sim
