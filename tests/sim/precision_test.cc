// The emulation of the narrow formats against MPFR, which rounds every operation once.
#include "sim/precision/precision.h"

#include <gtest/gtest.h>
#include <mpfr.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sim/precision/visit.h"
#include "tpce/dtype.h"

namespace tpce::sim {
namespace {

// Numbers of the format, correctly rounded by MPFR, with the format's subnormals and its largest number.
template <class Format>
class Exact {
 public:
  Exact() {
    mpfr_inits2(Format::kBits, a_, b_, result_, static_cast<mpfr_ptr>(nullptr));
    mpfr_set_emin(Format::kMinExponent - Format::kBits + 2);
    mpfr_set_emax(Format::kMaxExponent + 1);
  }
  ~Exact() {
    mpfr_clears(a_, b_, result_, static_cast<mpfr_ptr>(nullptr));
    mpfr_set_emin(mpfr_get_emin_min());
    mpfr_set_emax(mpfr_get_emax_max());
  }
  Exact(const Exact&) = delete;

  template <class Function>
  double unary(Function&& function, double a) {
    mpfr_set_d(a_, a, MPFR_RNDN);
    return narrowed(function(result_, a_, MPFR_RNDN));
  }

  // The numbers that operation() takes. Setting one costs as much as an operation.
  void set_left(double a) { mpfr_set_d(a_, a, MPFR_RNDN); }
  void set_right(double b) { mpfr_set_d(b_, b, MPFR_RNDN); }

  template <class Function>
  double operation(Function&& function) {
    return narrowed(function(result_, a_, b_, MPFR_RNDN));
  }

 private:
  double narrowed(int ternary) {
    mpfr_subnormalize(result_, ternary, MPFR_RNDN);
    return mpfr_get_d(result_, MPFR_RNDN);
  }

  mpfr_t a_, b_, result_;
};

// NaN and NaN, or the same number with the same sign of zero.
bool same(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

// Every number of the format: the numbers of kBits - 1 stored bits and its exponents, both infinities and a NaN.
template <class Format>
std::vector<double> numbers_of() {
  constexpr std::int64_t kFraction = std::int64_t{1} << (Format::kBits - 1);
  std::vector<double> numbers;
  for (std::int64_t exponent = Format::kMinExponent - 1; exponent <= Format::kMaxExponent; ++exponent) {
    const bool subnormal = exponent < Format::kMinExponent;
    for (std::int64_t fraction = 0; fraction < kFraction; ++fraction) {
      const double significand = static_cast<double>(subnormal ? fraction : kFraction + fraction);
      const auto scale = static_cast<int>(std::max<std::int64_t>(exponent, Format::kMinExponent) - Format::kBits + 1);
      numbers.push_back(std::ldexp(significand, scale));
    }
  }
  numbers.push_back(std::numeric_limits<double>::infinity());
  const std::size_t positive = numbers.size();
  for (std::size_t i = 0; i < positive; ++i) numbers.push_back(-numbers[i]);
  numbers.push_back(std::numeric_limits<double>::quiet_NaN());
  return numbers;
}

template <class Arithmetic>
class Formats : public ::testing::Test {};
struct NameOfArithmetic {
  template <class Arithmetic>
  static std::string GetName(int) {
    return std::string(name_of(Arithmetic::kPrecision));
  }
};
template <class Arithmetic>
struct FormatOf;
template <>
struct FormatOf<Bf16> : Bf16Format {};
template <>
struct FormatOf<Fp16> : Fp16Format {};
template <>
struct FormatOf<Tf32> : Tf32Format {};
using Narrow = ::testing::Types<Bf16, Fp16, Tf32>;
TYPED_TEST_SUITE(Formats, Narrow, NameOfArithmetic);

TYPED_TEST(Formats, EveryNumberStaysAndEveryMidpointGoesToEven) {
  using Real = typename TypeParam::Real;
  std::vector<double> numbers = numbers_of<FormatOf<TypeParam>>();
  for (const double x : numbers) ASSERT_TRUE(same(static_cast<double>(Real(x)), x)) << x;
  std::sort(numbers.begin(), numbers.end() - 1);
  for (std::size_t i = 1; i + 1 < numbers.size(); ++i) {
    const double below = numbers[i - 1], above = numbers[i];
    if (std::isinf(below) || std::isinf(above) || below == above) continue;
    const double middle = (below + above) / 2;
    const double to = static_cast<double>(Real(middle));
    const double unit = std::abs(above - below);
    EXPECT_EQ(std::remainder(to, 2 * unit), 0.0) << middle;
    ASSERT_TRUE(to == below || to == above);
    EXPECT_EQ(static_cast<double>(Real(std::nextafter(middle, above))), above);
    EXPECT_EQ(static_cast<double>(Real(std::nextafter(middle, below))), below);
  }
  // Half an ulp beyond the largest number is infinite; below that it is the largest.
  using Format = FormatOf<TypeParam>;
  const double largest = std::ldexp(2.0 - std::ldexp(1.0, 1 - Format::kBits), Format::kMaxExponent);
  const double border = std::ldexp(2.0 - std::ldexp(1.0, -Format::kBits), Format::kMaxExponent);
  EXPECT_EQ(static_cast<double>(Real(std::nextafter(border, 0.0))), largest);
  EXPECT_TRUE(std::isinf(static_cast<double>(Real(border))));
  EXPECT_TRUE(std::isinf(static_cast<double>(Real(1e300))));
}

// exp, log and log1p of every number.
TYPED_TEST(Formats, FunctionsOfEveryNumberAreCorrectlyRounded) {
  using Real = typename TypeParam::Real;
  Exact<FormatOf<TypeParam>> exact;
  for (const double x : numbers_of<FormatOf<TypeParam>>()) {
    ASSERT_TRUE(same(static_cast<double>(TypeParam::exp(Real(x))), exact.unary(mpfr_exp, x))) << "exp " << x;
    ASSERT_TRUE(same(static_cast<double>(TypeParam::log(Real(x))), exact.unary(mpfr_log, x))) << "log " << x;
    ASSERT_TRUE(same(static_cast<double>(TypeParam::log1p(Real(x))), exact.unary(mpfr_log1p, x))) << "log1p " << x;
  }
}

// The operation on x and y that differs from MPFR, as text, or nothing. exact holds both.
template <class Arithmetic>
std::string wrong_operation(Exact<FormatOf<Arithmetic>>& exact, double x, double y) {
  using Real = typename Arithmetic::Real;
  const Real a(x), b(y);
  const char* operation = nullptr;
  if (!same(static_cast<double>(a + b), exact.operation(mpfr_add))) operation = " + ";
  if (!same(static_cast<double>(a - b), exact.operation(mpfr_sub))) operation = " - ";
  if (!same(static_cast<double>(a * b), exact.operation(mpfr_mul))) operation = " * ";
  if (!same(static_cast<double>(a / b), exact.operation(mpfr_div))) operation = " / ";
  if ((a < b) != (x < y) || (a == b) != (x == y) || (a > b) != (x > y)) operation = " <=> ";
  return operation == nullptr ? "" : std::to_string(x) + operation + std::to_string(y);
}

template <class Arithmetic>
std::string wrong_pair(Exact<FormatOf<Arithmetic>>& exact, double x, double y) {
  exact.set_left(x);
  exact.set_right(y);
  return wrong_operation<Arithmetic>(exact, x, y);
}

// A grid over all pairs; neighbours of every size, for the carries and ties of sums; and uniform pairs.
TYPED_TEST(Formats, OperationsOfSampledPairsAreCorrectlyRounded) {
  using Real = typename TypeParam::Real;
  const std::vector<double> numbers = numbers_of<FormatOf<TypeParam>>();
  const std::size_t count = numbers.size();
  Exact<FormatOf<TypeParam>> exact;
  for (std::size_t i = 0; i < count; i += 1 + count / 300) {
    for (std::size_t j = 0; j < count; j += 1 + count / 301) {
      ASSERT_EQ(wrong_pair<TypeParam>(exact, numbers[i], numbers[j]), "");
    }
  }
  std::mt19937_64 bits(3);
  for (int k = 0; k < 100000; ++k) {
    const double x = numbers[bits() % count], y = numbers[bits() % count];
    ASSERT_EQ(wrong_pair<TypeParam>(exact, x, y), "");
    if (x == 0.0 || y == 0.0 || !std::isfinite(x) || !std::isfinite(y)) continue;
    const int apart = static_cast<int>(bits() % 41) - 20;
    const double near = static_cast<double>(Real(std::ldexp(y, std::ilogb(x) - std::ilogb(y) + apart)));
    ASSERT_EQ(wrong_pair<TypeParam>(exact, x, near), "");
    // A product and a quotient that end in the subnormals.
    const double to_smallest = FormatOf<TypeParam>::kMinExponent - std::ilogb(x) - static_cast<int>(bits() % 12);
    const double factor = static_cast<double>(Real(std::ldexp(y, static_cast<int>(to_smallest) - std::ilogb(y))));
    ASSERT_EQ(wrong_pair<TypeParam>(exact, x, factor), "");
    ASSERT_EQ(wrong_pair<TypeParam>(exact, x, factor == 0.0 ? 1.0 : static_cast<double>(Real(1.0 / factor))), "");
  }
}

// Why the operations are done in fp64: fp32 would round the subnormal results of tf32 twice. A B 2^-158 with A B a
// little above 2^21 lies just above half of the smallest number, 2^-136; fp32's subnormals, multiples of 2^-149, lose
// the little.
TEST(Tf32, SubnormalProductsAreRoundedOnce) {
  int tried = 0;
  for (int a = 1024; a < 2048; ++a) {
    for (int b = a; b < 2048; ++b) {
      if (a * b <= 1 << 21 || a * b >= (1 << 21) + 256) continue;
      ++tried;
      const double x = std::ldexp(a, -79), y = std::ldexp(b, -79);
      EXPECT_EQ(static_cast<double>(Tf32::Real(x) * Tf32::Real(y)), 0x1p-136) << a << " * " << b;
      const float once = static_cast<float>(x) * static_cast<float>(y);
      EXPECT_EQ(static_cast<double>(Tf32::Real(once)), 0.0) << a << " * " << b;
    }
  }
  EXPECT_GT(tried, 0);
}

template <class Arithmetic>
void check_all_pairs() {
  const std::vector<double> numbers = numbers_of<FormatOf<Arithmetic>>();
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    Exact<FormatOf<Arithmetic>> exact;
    for (std::size_t i = next++; i < numbers.size() && !failed; i = next++) {
      exact.set_left(numbers[i]);
      for (const double y : numbers) {
        exact.set_right(y);
        const std::string wrong = wrong_operation<Arithmetic>(exact, numbers[i], y);
        if (wrong.empty()) continue;
        failed = true;
        ADD_FAILURE() << wrong;
        return;
      }
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) threads.emplace_back(work);
}

TEST(Exhaustive, OperationsOfEveryPairOfBf16AreCorrectlyRounded) { check_all_pairs<Bf16>(); }
TEST(Exhaustive, OperationsOfEveryPairOfFp16AreCorrectlyRounded) { check_all_pairs<Fp16>(); }

// The two 16-bit formats are those of tpce/dtype.h, which rounds by other means; its zeros are all +0.
TEST(Bf16, RoundsAsTheCoreDoes) {
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 4099) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    BFloat16 bf16;
    Float16 fp16;
    round_to(x, &bf16);
    round_to(x, &fp16);
    if (std::isnan(x)) continue;
    ASSERT_EQ(static_cast<float>(Bf16::Real(x)), widen(bf16));
    ASSERT_EQ(static_cast<float>(Fp16::Real(x)), widen(fp16));
  }
}

// Numbers of the format, half of them within 2^-6 to 2^6.
template <class Arithmetic>
typename Arithmetic::Real arbitrary() {
  const auto wide = *rc::gen::arbitrary<bool>();
  const auto bits = *rc::gen::arbitrary<std::uint32_t>();
  const float any = std::bit_cast<float>(bits);
  const float near = (bits % 2 == 0 ? 1.0f : -1.0f) *
                     std::ldexp(1.0f + static_cast<float>(bits >> 9) * 0x1p-23f, static_cast<int>(bits % 13) - 6);
  return typename Arithmetic::Real(wide && !std::isnan(any) ? any : near);
}

template <class Arithmetic>
void laws() {
  using Real = typename Arithmetic::Real;
  const auto a = arbitrary<Arithmetic>(), b = arbitrary<Arithmetic>(), c = arbitrary<Arithmetic>();
  const auto value = [](Real x) { return static_cast<double>(x); };
  RC_ASSERT(same(value(a + b), value(b + a)));
  RC_ASSERT(same(value(a * b), value(b * a)));
  RC_ASSERT(same(value(a - b), value(a + -b)));
  RC_ASSERT(same(value(-(a + b)), value(-a + -b)) || value(a + b) == 0.0);
  // What the format holds is exact.
  const double sum = value(a) + value(b), product = value(a) * value(b);
  if (value(Real(sum)) == sum) RC_ASSERT(value(a + b) == sum);
  if (value(Real(product)) == product) RC_ASSERT(value(a * b) == product);
  RC_ASSERT(same(value(a * Real(1.0f)), value(a)));
  RC_ASSERT(same(value(a / Real(1.0f)), value(a)));
  RC_ASSERT(same(value(Real(value(a))), value(a)));
  // Rounding keeps the order, so operations and functions do.
  if (b <= c) {
    RC_ASSERT(!(a + b > a + c));
    RC_ASSERT(!(c - a < b - a));
    RC_ASSERT(!(Arithmetic::exp(b) > Arithmetic::exp(c)));
    if (a > Real(0.0f)) RC_ASSERT(!(a * b > a * c));
    if (b > Real(0.0f)) RC_ASSERT(!(Arithmetic::log(b) > Arithmetic::log(c)));
  }
}

RC_GTEST_PROP(Laws, Bf16, ()) { laws<Bf16>(); }
RC_GTEST_PROP(Laws, Fp16, ()) { laws<Fp16>(); }
RC_GTEST_PROP(Laws, Tf32, ()) { laws<Tf32>(); }
RC_GTEST_PROP(Laws, Fp32, ()) { laws<Fp32>(); }

TEST(Mixed, StorageRoundsLogitsAndGradientsAlone) {
  const float third = 1.0f / 3.0f;
  EXPECT_EQ(Bf16Storage::load(third), 0.333984375f);
  EXPECT_EQ(Bf16Storage::store(third), 0.333984375);
  EXPECT_EQ(Bf16Storage::exp(third), std::exp(third));
}

TEST(Mixed, Bf16ExpRoundsExpAlone) {
  std::mt19937 bits(1);
  Exact<Bf16Format> exact;
  for (int i = 0; i < 100000; ++i) {
    const float x = -static_cast<float>(bits()) * 0x1p-25f;  // -128..0
    mpfr_t wide, result;
    mpfr_init2(wide, 24);
    mpfr_init2(result, Bf16Format::kBits);
    mpfr_set_flt(wide, x, MPFR_RNDN);
    mpfr_subnormalize(result, mpfr_exp(result, wide, MPFR_RNDN), MPFR_RNDN);
    ASSERT_EQ(static_cast<double>(Bf16Exp::exp(x)), mpfr_get_d(result, MPFR_RNDN)) << x;
    mpfr_clears(wide, result, static_cast<mpfr_ptr>(nullptr));
  }
  EXPECT_EQ(Bf16Exp::log(3.0f), std::log(3.0f));
  EXPECT_EQ(Bf16Exp::load(1.0f / 3.0f), 1.0f / 3.0f);
}

// The bound of fp32_fast_exp.h, and that it is no idle one: ulps of error grow with |x|.
TEST(Mixed, FastExpErrsByUpToTwoUlpAndMoreFarFromZero) {
  double near = 0.0, far = 0.0;
  std::mt19937 bits(2);
  for (int i = 0; i < 2000000; ++i) {
    const float x = -static_cast<float>(bits()) * 0x1p-32f * (i % 2 == 0 ? 1.0f : 87.0f);
    const double exact = std::exp(static_cast<double>(x));
    const double ulp = std::ldexp(1.0, std::ilogb(static_cast<float>(exact)) - 23);
    const double error = std::abs(static_cast<double>(Fp32FastExp::exp(x)) - exact) / ulp;
    EXPECT_LE(error, 1.0 + 1.23 * std::abs(static_cast<double>(x))) << x;
    double& largest = x > -1.0f ? near : far;
    largest = std::max(largest, error);
  }
  EXPECT_LE(near, 2.0);
  EXPECT_GT(far, 20.0);
}

TEST(Precision, NamesRoundTrip) {
  for (const PrecisionInfo& info : kPrecisions) {
    EXPECT_EQ(precision_from_name(info.name), info.precision);
    EXPECT_EQ(name_of(info.precision), info.name);
    EXPECT_EQ(visit_precision(info.precision, [](auto arithmetic) { return decltype(arithmetic)::kPrecision; }),
              info.precision);
  }
  try {
    precision_from_name("fp8");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "precision: got 'fp8', expected one of fp32, fp64, bf16, fp16, tf32, bf16_storage, bf16_exp, "
                 "fp32_fast_exp");
  }
}

// bits is where 1 + x first differs from 1: epsilon is kept, its half is a tie that goes to 1.
TEST(Precision, BitsAreThoseOfAddition) {
  for (const PrecisionInfo& info : kPrecisions) {
    visit_precision(info.precision, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      const Real one(1.0f), epsilon = static_cast<Real>(info.epsilon());
      EXPECT_TRUE(one + epsilon > one) << info.name;
      EXPECT_TRUE(one + epsilon * Real(0.5f) == one) << info.name;
    });
  }
}

}  // namespace
}  // namespace tpce::sim
