#include "reference/evaluate.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tpce::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
std::uint64_t bits(T x) {
  std::uint64_t result = 0;
  std::memcpy(&result, &x, sizeof(x));
  return result;
}

// fp32 rows [T, V] with labels, cut into shards of the widths given.
struct Case {
  std::int64_t vocab;
  std::vector<float> logits;
  std::vector<std::int64_t> labels;
  Options options;
  std::int64_t classes = 0;  // 0: all columns

  std::int64_t rows() const { return static_cast<std::int64_t>(labels.size()); }

  template <class Use>
  auto with(const std::vector<std::int64_t>& widths, const Upstream& upstream, const Use& use) const {
    const ShardPlan plan = ShardPlan::from_widths(vocab, widths);
    std::vector<Shard> shards;
    const ConstMatrix all = matrix_of(logits.data(), rows(), vocab);
    for (std::int64_t i = 0; i < plan.tp(); ++i) {
      shards.push_back({all.column_range(plan.first_class(i), plan.width(i)), i});
    }
    const Batch batch{plan, shards, Labels(labels.data(), rows()), classes == 0 ? vocab : classes};
    return use(Inputs{batch, options, upstream});
  }

  Evaluation evaluate(const Method& method = {}, const Upstream& upstream = {}) const {
    return with({vocab}, upstream, [&](const Inputs& inputs) { return reference::evaluate(inputs, method); });
  }
};

Case random_case(std::int64_t rows, std::int64_t vocab) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  Case c{vocab, std::vector<float>(static_cast<std::size_t>(rows * vocab)), {}, {}};
  for (float& z : c.logits) {
    BFloat16 rounded;
    round_to(normal(random), &rounded);  // few distinct values, as in bf16 logits
    z = widen(rounded);
  }
  for (std::int64_t row = 0; row < rows; ++row) c.labels.push_back((row * 37) % vocab);
  return c;
}

void expect_same(const Value& x, const Value& y) {
  EXPECT_EQ(bits(x.fp64), bits(y.fp64));
  EXPECT_EQ(bits(x.fp32), bits(y.fp32));
  EXPECT_EQ(x.certified, y.certified);
}

void expect_same(const Evaluation& x, const Evaluation& y) {
  ASSERT_EQ(x.rows.size(), y.rows.size());
  for (std::size_t i = 0; i < x.rows.size(); ++i) {
    expect_same(x.rows[i].loss, y.rows[i].loss);
    expect_same(x.rows[i].lse, y.rows[i].lse);
    expect_same(x.rows[i].target_gradient, y.rows[i].target_gradient);
  }
  ASSERT_EQ(x.reduced.has_value(), y.reduced.has_value());
  if (x.reduced) expect_same(*x.reduced, *y.reduced);
}

class EveryPrecision : public testing::TestWithParam<Precision> {
 protected:
  Method method() const {
    Method m;
    m.precision = GetParam();
    return m;
  }
};

INSTANTIATE_TEST_SUITE_P(Evaluate, EveryPrecision,
                         testing::Values(Precision::kFp64, Precision::kMultiprecision, Precision::kCertified),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(EveryPrecision, SameBitsForEveryShardingAndThreadCount) {
  const Case c = random_case(7, 101);
  const Evaluation one = c.evaluate(method());
  for (const auto& widths : {std::vector<std::int64_t>{50, 51}, {0, 1, 100, 0}, {13, 13, 13, 13, 13, 13, 13, 10}}) {
    for (int threads : {1, 3, 16}) {
      Method m = method();
      m.threads = threads;
      c.with(widths, {}, [&](const Inputs& inputs) { expect_same(evaluate(inputs, m), one); });
    }
  }
}

TEST_P(EveryPrecision, IgnoredRowsAreNotReadAndAddNothing) {
  Case c{2, {0, 0, kNan, kInfinity, 0, 0}, {1, -100, 0}, {}};
  const Evaluation mean = c.evaluate(method());
  EXPECT_EQ(mean.valid_rows, 2);
  EXPECT_TRUE(mean.rows[1].ignored);
  for (const Value& value : {mean.rows[1].loss, mean.rows[1].lse, mean.rows[1].target_gradient}) {
    EXPECT_EQ(bits(value.fp64), 0u);
    EXPECT_EQ(bits(value.fp32), 0u);
  }
  EXPECT_EQ(mean.reduced->fp32, 0x1.62e43p-1f);  // log 2
  c.options.ignore_index = 0;                    // a valid class
  c.labels = {1, 1, 0};
  c.logits[2] = c.logits[3] = 1.0f;
  EXPECT_EQ(c.evaluate(method()).valid_rows, 2);
  EXPECT_TRUE(c.evaluate(method()).rows[2].ignored);
}

TEST_P(EveryPrecision, NothingValid) {
  Case c{2, {0, 0}, {-100}, {}};
  EXPECT_TRUE(std::isnan(c.evaluate(method()).reduced->fp32));
  c.options.empty_mean = EmptyMean::kZero;
  EXPECT_EQ(bits(c.evaluate(method()).reduced->fp64), 0u);
  c.options.reduction = Reduction::kSum;
  EXPECT_EQ(bits(c.evaluate(method()).reduced->fp64), 0u);
  c.options.reduction = Reduction::kNone;
  EXPECT_FALSE(c.evaluate(method()).reduced.has_value());
  Case empty{2, {}, {}, {}};
  EXPECT_TRUE(std::isnan(empty.evaluate(method()).reduced->fp64));
}

TEST_P(EveryPrecision, InfinityAndNanReachTheReducedLoss) {
  Case c{2, {-kInfinity, 0, 0, 0}, {0, 0}, {}};
  EXPECT_EQ(c.evaluate(method()).reduced->fp32, kInfinity);
  c.logits[2] = kNan;
  EXPECT_TRUE(std::isnan(c.evaluate(method()).reduced->fp32));
}

TEST_P(EveryPrecision, NonFiniteRowsAreErrorsWhenAskedFor) {
  Case c{2, {0, 0, -kInfinity, 0, 0, kNan, kInfinity, 0}, {0, 0, 0, 0}, {}};
  c.options.non_finite_row = NonFiniteRow::kError;
  for (int threads : {1, 4}) {
    Method m = method();
    m.threads = threads;
    try {
      (void)c.evaluate(m);
      FAIL() << "accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_STREQ(error.what(), "logits: row 2 has NaN at class 1, expected finite values or -inf");
    }
  }
}

TEST_P(EveryPrecision, RowsWithNothingAboveMinusInfinityAreNamedToo) {
  Case c{2, {0, 1, -kInfinity, -kInfinity}, {0, 1}, {}};
  EXPECT_TRUE(std::isnan(c.evaluate(method()).rows[1].loss.fp64));
  c.options.non_finite_row = NonFiniteRow::kError;
  try {
    (void)c.evaluate(method());
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "logits: row 1 has nothing above -inf, expected a finite value");
  }
}

TEST_P(EveryPrecision, PaddingCarriesNoMassAndHasNoGradient) {
  Case c{4, {0, 0, 50, kNan}, {1}, {}, 2};
  const Evaluation evaluation = c.evaluate(method());
  EXPECT_EQ(evaluation.rows[0].loss.fp32, 0x1.62e43p-1f);
  const auto gradient = c.with({1, 1, 2}, {}, [&](const Inputs& inputs) { return row_gradient(inputs, method(), 0); });
  ASSERT_EQ(gradient.size(), 4u);
  EXPECT_EQ(gradient[0].fp32, 0.5f);
  EXPECT_EQ(gradient[1].fp32, -0.5f);
  EXPECT_EQ(bits(gradient[2].fp64), 0u);
  EXPECT_EQ(bits(gradient[3].fp64), 0u);
}

TEST_P(EveryPrecision, UpstreamByRowAndAsAnExactFraction) {
  const Case c{2, {0, 0, 0, 0, 0, 0}, {0, 1, 0}, {}};
  const double per_row[] = {0.0, 1.0, -3.0};
  const Evaluation by_row = c.evaluate(method(), {per_row});
  EXPECT_EQ(bits(by_row.rows[0].target_gradient.fp32), 0u);
  EXPECT_EQ(by_row.rows[1].target_gradient.fp32, -0.5f);
  EXPECT_EQ(by_row.rows[2].target_gradient.fp32, 1.5f);
  const Upstream mean = upstream_of_reduction(Labels(c.labels.data(), 3), c.options);
  EXPECT_EQ(c.evaluate(method(), mean).rows[0].target_gradient.fp64, -1.0 / 6.0);
}

TEST_P(EveryPrecision, GradientFillsAMatrixOfEachType) {
  Case c = random_case(4, 33);
  c.labels[1] = -100;
  c.logits[2 * 33 + 5] = kNan;
  c.logits[3 * 33 + 6] = -kInfinity;
  const auto fill = [&](auto element) {
    std::vector<decltype(element)> out(4 * 33);
    c.with({20, 13}, {}, [&](const Inputs& inputs) {
      const std::int64_t open = gradient(inputs, method(), matrix_of(out.data(), 4, 33));
      // An ignored row, a NaN row, and a class without mass are known; the rest only where proved.
      EXPECT_EQ(open, GetParam() == Precision::kCertified ? 0 : 2 * 33 - 1);
    });
    return out;
  };
  const std::vector<double> fp64 = fill(double{});
  const std::vector<float> fp32 = fill(float{});
  const std::vector<BFloat16> bf16 = fill(BFloat16{});
  const std::vector<Float16> fp16 = fill(Float16{});
  c.with({33}, {}, [&](const Inputs& inputs) {
    for (std::int64_t row = 0; row < 4; ++row) {
      const std::vector<Value> values = row_gradient(inputs, method(), row);
      for (std::size_t i = 0; i < 33; ++i) {
        const std::size_t at = static_cast<std::size_t>(row) * 33 + i;
        if (row == 2) {
          EXPECT_TRUE(std::isnan(fp64[at]) && std::isnan(fp32[at]));
          EXPECT_EQ(bf16[at].bits, 0x7fc0);
          EXPECT_EQ(fp16[at].bits, 0x7e00);
          continue;
        }
        EXPECT_EQ(bits(fp64[at]), bits(values[i].fp64));
        EXPECT_EQ(bits(fp32[at]), bits(values[i].fp32));
        BFloat16 as_bf16;
        Float16 as_fp16;
        round_to(values[i].fp32, &as_bf16);
        round_to(values[i].fp32, &as_fp16);
        EXPECT_EQ(bf16[at].bits, as_bf16.bits);
        EXPECT_EQ(fp16[at].bits, as_fp16.bits);
        if (row == 1) {
          EXPECT_EQ(bits(fp64[at]), 0u);
        }
      }
    }
    EXPECT_EQ(bits(fp64[3 * 33 + 6]), 0u);
  });
}

// The gradients of a row add up to 0; n rounded numbers of one sum are each off by half a unit in the last place.
TEST(Certified, GradientsOfARowAddUpToZero) {
  const Case c = random_case(3, 257);
  c.with({257}, {}, [](const Inputs& inputs) {
    for (std::int64_t row = 0; row < 3; ++row) {
      long double sum = 0;
      long double size = 0;
      for (const Value& value : row_gradient(inputs, {}, row)) {
        sum += value.fp64;
        size += std::abs(value.fp64);
      }
      EXPECT_LE(std::abs(static_cast<double>(sum)), static_cast<double>(size) * 0x1p-53);
    }
  });
}

TEST(Certified, ReducedLossIsRoundedOnce) {
  // Rows of 2, 3 and 2 equal logits: log 2 + log 3 + log 2, and a row without rivals. Constants: mpmath, 120 digits.
  Case c{3, {0, 0, -kInfinity, 1, 1, 1, 5, -kInfinity, 5, 2, -kInfinity, -kInfinity}, {0, 1, 2, 0}, {}};
  const Evaluation mean = c.evaluate();
  EXPECT_TRUE(mean.reduced->certified);
  EXPECT_EQ(mean.reduced->fp64, 0x1.3e116bcd39e7dp-1);
  EXPECT_EQ(mean.reduced->fp32, 0x1.3e116cp-1f);
  c.options.reduction = Reduction::kSum;
  const Evaluation sum = c.evaluate();
  EXPECT_TRUE(sum.reduced->certified);
  EXPECT_EQ(sum.reduced->fp64, 0x1.3e116bcd39e7dp+1);
  EXPECT_EQ(sum.reduced->fp32, 0x1.3e116cp+1f);
  EXPECT_TRUE(undecided(sum, {}).empty());
}

// z = [0, 0] with target [0, 1e6 in front]: the sum of losses 1e6 and exp(-1e6) is 1e6 to any affordable precision, and
// so is each loss; which side of a border the sum lies on is decided because losses are positive.
TEST(Certified, SumsOfFarApartLosses) {
  Case c{2, {0, 300, 300, 0}, {0, 0}, {}};
  c.options.reduction = Reduction::kSum;
  const Evaluation sum = c.evaluate();
  EXPECT_TRUE(sum.reduced->certified);
  EXPECT_EQ(sum.reduced->fp64, 300.0);
}

TEST(Certified, NamesWhatItCouldNotDecide) {
  // As in certified_test.cc: p_nt = 2/3 + 2^-200 / 9 beside a border of fp32, which 128 bits do not tell apart.
  const Case c{3, {0, 0x1p-100f, -0x1p-100f, 0, 0, 0}, {0, 0}, {}};
  const double per_row[] = {3.0 + 3 * 0x1p-24, 1.0};
  Method method;
  method.max_bits = 128;
  const Evaluation evaluation = c.evaluate(method, {per_row});
  EXPECT_EQ(undecided(evaluation, method),
            std::vector<std::string>{"row 0: target gradient not decided with 128 bits"});
  method.max_bits = 1024;
  EXPECT_TRUE(undecided(c.evaluate(method, {per_row}), method).empty());
}

#if defined(__SSE2__)
TEST_P(EveryPrecision, CallersArithmeticIsNeitherUsedNorChanged) {
  // Subnormal results, subnormal logits, and rounding that shows.
  const Case c{2, {0, -103, 0x1p-149f, 0, 0, 1}, {0, 1, 0}, {}};
  const Evaluation usual = c.evaluate(method());
  const auto usual_row = c.with({2}, {}, [&](const Inputs& inputs) { return row_gradient(inputs, method(), 1); });
  const unsigned before = _mm_getcsr();
  const unsigned set = (before | 0x8040u) | 0x6000u;  // flush to zero, subnormals are zero, round toward zero
  _mm_setcsr(set);
  const Evaluation changed = c.evaluate(method());
  const auto changed_row = c.with({2}, {}, [&](const Inputs& inputs) { return row_gradient(inputs, method(), 1); });
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after & 0xffc0u, set & 0xffc0u);
  expect_same(changed, usual);
  for (std::size_t i = 0; i < 2; ++i) expect_same(changed_row[i], usual_row[i]);
}
#endif

TEST(Evaluate, TellsOfEachRowOnceAndNotAtTheSameTime) {
  Case c = random_case(40, 8);
  c.labels[3] = c.options.ignore_index;
  int done = 0;
  Method method{.precision = Precision::kFp64};
  method.threads = 4;
  c.with({8}, {}, [&](const Inputs& inputs) { return reference::evaluate(inputs, method, [&] { ++done; }); });
  EXPECT_EQ(done, 40);
}

TEST(Evaluate, RefusesWhatDoesNotFit) {
  const Case c{2, {0, 0, 0, 0}, {0, 1}, {}};
  const auto refusal = [&](const std::function<void()>& act) -> std::string {
    try {
      act();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  const double one[] = {1.0};
  EXPECT_EQ(refusal([&] { (void)c.evaluate({}, {one}); }), "upstream: got 1 values, expected one for each of 2 rows");
  Upstream zero;
  zero.denominator = 0;
  EXPECT_EQ(refusal([&] { (void)c.evaluate({}, zero); }), "upstream: got denominator 0, expected at least 1");
  c.with({2}, {}, [&](const Inputs& inputs) {
    EXPECT_EQ(refusal([&] { (void)row_gradient(inputs, {}, 2); }), "row: got 2, expected 0..1");
    float out[4];
    EXPECT_EQ(refusal([&] { (void)gradient(inputs, {}, matrix_of(out, 1, 2)); }),
              "gradient: got [1, 2], expected [2, 2] in host memory");
    Matrix narrow = matrix_of(out, 2, 2);
    narrow.row_stride = 1;
    EXPECT_EQ(refusal([&] { (void)gradient(inputs, {}, narrow); }),
              "gradient: row_stride is 1, expected at least the width, 2");
    EXPECT_EQ(refusal([&] { (void)gradient(inputs, {}, matrix_of<float>(nullptr, 2, 2)); }), "gradient: data is null");
  });
  Case outside = c;
  outside.labels[1] = 2;
  EXPECT_EQ(refusal([&] { (void)outside.evaluate(); }), "labels: row 1 has 2, expected 0..1 or ignore_index -100");
}

}  // namespace
}  // namespace tpce::reference
