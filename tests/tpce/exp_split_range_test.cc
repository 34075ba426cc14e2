// The error bound of exp_split over every fp32 f of the reduced range, and n over every fp32 x: a sample in the normal
// run, all of them under label exhaustive.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "tests/support/exp_split_error.h"
#include "tpce/exp_split.h"

namespace tpce {
namespace {

using testing::kExpSplitBound;
using testing::MpfrReal;

// 2^f for |f| <= 0.51 in fp64, by the Taylor series of e^y, y = f ln 2, |y| < 0.354, of degree 14. Relative error below
// 2^-51:
//   y          RN(f * ln2) with ln2 rounded: |y| (2^-53 + 2^-54), below 2^-54
//   series     what follows degree 14: |y|^15 / 15! / (1 - |y|) < 2^-62
//   Horner     the sum before the last step is below 1.2 and has an error below 2^-52; times |y| that is below 2^-53.5
//   last step  half an ulp of a result in [0.70, 1.43]: at most 2^-53, relative to 0.70 below 2^-52.4
double exp2_fp64(double f) {
  const double y = f * 0x1.62e42fefa39efp-1;
  double factorial = 1.0;
  double coefficients[15] = {};
  for (int i = 0; i < 15; ++i) {
    coefficients[i] = 1.0 / factorial;
    factorial *= i + 1;
  }
  double sum = coefficients[14];
  for (int i = 13; i >= 0; --i) sum = std::fma(sum, y, coefficients[i]);
  return sum;
}
constexpr double kEvaluatorError = 0x1p-51;

// Error of the polynomial at f, as a multiple of 2^-24.
double polynomial_error(float f) {
  const double exact = exp2_fp64(static_cast<double>(f));
  return std::fabs(static_cast<double>(exp2_polynomial(f)) - exact) / exact * 0x1p24;
}

// x log2(e) - n within 2^-53: two roundings of half an ulp of at most 0.51, and log2(e) to 2^-108, times 2^30.
double exact_remainder(float x, std::int32_t n) {
  const double wide = static_cast<double>(x);
  return std::fma(wide, 0x1.777d0ffda0d24p-56, std::fma(wide, 0x1.71547652b82fep+0, -static_cast<double>(n)));
}

// Error of the whole p * 2^n, as a multiple of 2^-24. The remainder adds ln 2 * 2^-53 to the evaluator's error.
double whole_error(float x) {
  const ExpSplit y = exp_split(x);
  const double exact = exp2_fp64(exact_remainder(x, y.exponent));
  return std::fabs(static_cast<double>(y.mantissa) - exact) / exact * 0x1p24;
}
constexpr double kWholeEvaluatorError = 0x1p-50;

double polynomial_error_by_mpfr(float f) {
  MpfrReal exact(static_cast<double>(f));
  mpfr_exp2(exact.get(), exact.get(), MPFR_RNDN);
  MpfrReal error(static_cast<double>(exp2_polynomial(f)));
  mpfr_sub(error.get(), error.get(), exact.get(), MPFR_RNDN);
  mpfr_div(error.get(), error.get(), exact.get(), MPFR_RNDN);
  return std::fabs(error.to_double()) * 0x1p24;
}

// What the fp32 reduction adds while |f| <= 1/2: two roundings of f, each at most 2^-26, and log2(e) cut short by less
// than 2^-50, times |x| < 2^16; relatively ln 2 times as much. Beyond 1/2 the second rounding is twice as coarse, and
// every x that leads there is looked at as a whole, below.
constexpr double kReductionError = 0.6931472 * (2 * 0x1p-26 + 0x1p-34) * 0x1p24;

// Positive patterns of |f| from 2^-31, below which the polynomial is 1, to 0.502, every `stride`-th of them.
struct Range {
  std::uint32_t first = bit_cast<std::uint32_t>(0x1p-31f);
  std::uint32_t last = bit_cast<std::uint32_t>(0.502f);
  std::uint32_t stride = 1;
};

// Largest errors seen and, where asked for, the worst f.
struct Found {
  double worst_polynomial = 0.0;
  double worst_within_half = 0.0;  // of |f| <= 1/2
  std::uint64_t count = 0;
  std::vector<float> worst;
};

Found search(const Range& range, std::size_t keep) {
  const unsigned workers = std::max(1u, std::thread::hardware_concurrency());
  std::atomic<std::uint32_t> next{range.first};
  std::mutex mutex;
  Found found;
  using Entry = std::pair<double, float>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap;  // the smallest kept on top
  const auto work = [&] {
    constexpr std::uint32_t kBlock = 1 << 20;
    Found own;
    std::vector<Entry> entries;
    double threshold = 0.0;
    while (true) {
      const std::uint32_t begin = next.fetch_add(kBlock);
      if (begin > range.last || begin < range.first) break;
      const std::uint32_t end = std::min(range.last, begin + kBlock - 1);
      const std::uint32_t phase = (range.stride - (begin - range.first) % range.stride) % range.stride;
      entries.clear();
      for (std::uint32_t bits = begin + phase; bits <= end; bits += range.stride) {
        for (const std::uint32_t sign : {0u, 0x80000000u}) {
          const float f = bit_cast<float>(bits | sign);
          const double error = polynomial_error(f);
          own.worst_polynomial = std::max(own.worst_polynomial, error);
          if (std::fabs(f) <= 0.5f) own.worst_within_half = std::max(own.worst_within_half, error);
          own.count += 1;
          if (keep > 0 && error > threshold) entries.emplace_back(error, f);
        }
      }
      if (keep == 0) continue;
      const std::lock_guard lock(mutex);
      for (const Entry& entry : entries) {
        if (heap.size() < keep) {
          heap.push(entry);
        } else if (entry.first > heap.top().first) {
          heap.pop();
          heap.push(entry);
        }
      }
      if (heap.size() == keep) threshold = heap.top().first;
    }
    const std::lock_guard lock(mutex);
    found.worst_polynomial = std::max(found.worst_polynomial, own.worst_polynomial);
    found.worst_within_half = std::max(found.worst_within_half, own.worst_within_half);
    found.count += own.count;
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < workers; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  for (; !heap.empty(); heap.pop()) found.worst.push_back(heap.top().second);
  return found;
}

void expect_within_the_bound(const Range& range, std::size_t keep) {
  const Found found = search(range, keep);
  std::cout << found.count << " values of f: polynomial " << found.worst_polynomial << " * 2^-24, for |f| <= 1/2 "
            << found.worst_within_half << " * 2^-24\n";
  EXPECT_LE(found.worst_within_half + kReductionError + kEvaluatorError * 0x1p24, kExpSplitBound);
  // The worst again by MPFR: the evaluator's own error is as small as derived.
  double worst_by_mpfr = 0.0;
  double disagreement = 0.0;
  for (const float f : found.worst) {
    const double error = polynomial_error_by_mpfr(f);
    worst_by_mpfr = std::max(worst_by_mpfr, error);
    disagreement = std::max(disagreement, std::fabs(error - polynomial_error(f)));
  }
  EXPECT_LE(disagreement, kEvaluatorError * 0x1p24);
  std::cout << found.worst.size() << " worst by MPFR: " << worst_by_mpfr << " * 2^-24\n";
}

TEST(ExpSplitRange, SampleOfTheReducedRange) { expect_within_the_bound({.stride = 1009}, 10'000); }

TEST(ExpSplitRangeExhaustive, EveryFOfTheReducedRange) { expect_within_the_bound({}, 1'000'000); }

// Below 2^-31 the polynomial is 1 for either sign, and 2^f is within 2^-31.5 of it.
TEST(ExpSplitRange, TinyFGivesOne) {
  for (std::uint32_t bits = 0; bits < bit_cast<std::uint32_t>(0x1p-31f); bits += 997) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) ASSERT_EQ(exp2_polynomial(bit_cast<float>(bits | sign)), 1.0f);
  }
}

// Over every stride-th x from 2^-30 to 2^30: |f| never leaves the range that is searched, n never falls, and p * 2^n as
// a whole is within the bound. Below 2^-30, n is 0 and p is 1 within 2^-30.
void expect_reduction_in_range(std::uint32_t stride) {
  const std::uint32_t first = bit_cast<std::uint32_t>(0x1p-30f);
  const std::uint32_t last = bit_cast<std::uint32_t>(0x1p30f);
  std::int32_t before[2] = {0, 0};
  double largest = 0.0;
  double worst = 0.0;
  double worst_beyond_half = 0.0;
  std::uint64_t count = 0;
  for (std::uint32_t bits = first; bits <= last; bits += stride) {
    for (const int sign : {0, 1}) {
      const float magnitude = bit_cast<float>(bits);
      const float x = sign == 0 ? magnitude : -magnitude;
      const std::int32_t n = exp_split(x).exponent;
      ASSERT_GE(sign == 0 ? n : -n, before[sign]) << std::hexfloat << x;
      before[sign] = sign == 0 ? n : -n;
      const double remainder = std::fabs(exact_remainder(x, n));
      largest = std::max(largest, remainder);
      const double error = whole_error(x);
      worst = std::max(worst, error);
      // f itself is within 2^-24 of the remainder.
      if (remainder > 0.5 - 0x1p-24) worst_beyond_half = std::max(worst_beyond_half, error);
      ++count;
    }
  }
  EXPECT_LE(largest, 0.502 - 0x1p-24);
  EXPECT_LE(worst + kWholeEvaluatorError * 0x1p24, kExpSplitBound);
  EXPECT_EQ(exp_split(0x1p-30f).exponent, 0);
  std::cout << count << " values of x: largest |f| " << largest << ", error " << worst << " * 2^-24, where |f| > 1/2 "
            << worst_beyond_half << " * 2^-24\n";
}

TEST(ExpSplitRange, ReductionOfASample) { expect_reduction_in_range(251); }

TEST(ExpSplitRangeExhaustive, ReductionOfEveryX) { expect_reduction_in_range(1); }

}  // namespace
}  // namespace tpce
