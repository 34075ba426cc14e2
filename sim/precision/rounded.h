// Numbers of a narrow binary format whose every operation is rounded to it, to nearest, ties to even.
//
// An operation is done in fp64 and then rounded to the format: two roundings. The result is that of one. Let p <= 11 be
// the format's bits, and x the exact result of a + b, a - b, a b or a / b for numbers a, b of the format. The second
// rounding can differ from a single one only if the first moved x onto, or across, a midpoint m of two neighbouring
// numbers of the format while x != m; m has at most p + 1 bits, so fp64 holds it, and the first rounding, which is
// monotone, can at most move x onto m. It does so only if 0 < |x - m| <= 2^-53 |m|.
//  - Product: at most 2 p <= 22 bits, so fp64 holds x and there is one rounding only.
//  - Quotient: x - m = (a - m b) / b. a - m b is not 0 and a multiple of the smaller of ulp(a) and ulp(m) ulp(b), so
//    |x - m| / |m| is at least 2^-(2 p + 1) >= 2^-23.
//  - Sum and difference: x is a multiple of ulp(b), b the smaller operand. If ulp(b) >= 2^-52 |x| fp64 holds x. Else b
//    is so far below a, 2^-52 |x| 2^p at most, that it can only break a tie between a, a number of the format, and its
//    neighbours; m is half an ulp of the format away from a, 2^-(p + 1) |a| or more, which |b| does not reach.
// Figueroa ("When is double rounding innocuous?", 1995) has the condition as P >= 2 p + 2 for normal results: 53 >= 24
// holds here, and for p = 11 even fp32 has it, 24 >= 24. But fp32 rounds its subnormals too: products of tf32 numbers
// near 2^-137 would be rounded twice. fp64 has no subnormals here, since a format with the exponents of fp32 makes no
// product below 2^-298. The argument above uses no lower end of the format's exponents but that its numbers are
// multiples of its smallest: so it holds for subnormal results, whose midpoints have fewer bits.
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
  constexpr std::uint64_t kExponentBias = 1023, kExponentMask = 0x7ff;
  constexpr std::uint64_t kLowest = static_cast<std::uint64_t>(Format::kMinExponent + 1023);
  constexpr double kMax =
      (2.0 - 1.0 / (1 << (Format::kBits - 1))) * std::bit_cast<double>((kExponentBias + Format::kMaxExponent) << 52);
  const std::uint64_t exponent = (std::bit_cast<std::uint64_t>(x) >> 52) & kExponentMask;
  if (exponent == kExponentMask) return x;  // infinite or NaN
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
