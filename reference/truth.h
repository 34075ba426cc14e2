// What an evaluation of one row says, in the same shape for the three precisions.
#pragma once

#include <cstdint>
#include <string_view>

namespace tpce::reference {

enum class Precision : std::uint8_t {
  kFp64,            // compensated fp64, within the bound of fp64.h
  kMultiprecision,  // MPFR, good to Method::digits
  kCertified,       // MPFI intervals that prove each correct rounding
};

// "fp64", "multiprecision" or "certified"; throws std::invalid_argument otherwise.
Precision precision_from_name(std::string_view name);
std::string_view name_of(Precision precision);

struct Method {
  Precision precision = Precision::kCertified;
  int digits = 50;                  // multiprecision: decimal digits of the result, 1..kMaxDigits
  std::int64_t max_bits = 1 << 13;  // certified: the precision at which a value is given up, kMinBits..kMaxBits
  int threads = 0;                  // workers over rows; 0: as many as the machine has

  static constexpr int kMaxDigits = 100000;
  static constexpr std::int64_t kMinBits = 128;  // see docs/reference.md, "Exact values"
  static constexpr std::int64_t kMaxBits = 1 << 20;
};

// The upstream gradient g = numerator / denominator, taken as this exact rational: the g of a mean over 3 rows is a
// third, not the double beside it. denominator >= 1. A numerator that is not finite makes the gradient NaN.
struct Ratio {
  double numerator = 1.0;
  std::int64_t denominator = 1;
};

// One real number, rounded to nearest (ties to even) once to each format. Zeros are +0.
struct Value {
  double fp64 = 0.0;
  float fp32 = 0.0f;
  bool certified =
      false;  // both roundings are proved; fp64 and multiprecision say so only of values without an exponential
};

// loss = log(1 + A / exp(z_t)), lse = log(A + exp(z_t)), target_gradient = -g A / (A + exp(z_t)),
// where A is the sum of exp(z_j) over the classes j other than the target t.
struct RowTruth {
  Value loss;
  Value lse;
  Value target_gradient;
  bool ignored = false;  // the label is ignore_index: all three values are +0
};

}  // namespace tpce::reference
