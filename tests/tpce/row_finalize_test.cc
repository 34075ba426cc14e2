#include "tpce/row_finalize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/mpfr_real.h"

namespace tpce {
namespace {

using testing::distance;
using testing::MpfrReal;
using testing::ulps_fp32;
using testing::ulps_fp64;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kJustHuge = 0x1.000002p30f;
constexpr float kLargest = std::numeric_limits<float>::max();

// Finalized row and gradients of all classes.
struct Row {
  FinalRow final;
  RowGradient gradient;
  std::vector<float> dz;
};

Row evaluate(const std::vector<float>& logits, std::int64_t target, double g = 1.0) {
  const auto count = static_cast<std::int64_t>(logits.size());
  Row row;
  row.final = finalize(row_partial(logits.data(), count, target));
  row.gradient = row_gradient(row.final.saved, g);
  for (std::int64_t j = 0; j < count; ++j) {
    row.dz.push_back(j == target ? row.gradient.target
                                 : non_target_gradient(row.gradient, logits[static_cast<std::size_t>(j)]));
  }
  return row;
}

bool is_positive_zero(float x) { return bit_cast<std::uint32_t>(x) == 0; }
bool is_positive_zero(double x) { return bit_cast<std::uint64_t>(x) == 0; }
bool is_canonical_nan(float x) { return bit_cast<std::uint32_t>(x) == 0x7fc00000u; }

void expect_all_nan(const Row& row) {
  EXPECT_EQ(row.final.saved.status, RowStatus::kNotFinite);
  EXPECT_TRUE(std::isnan(row.final.nll));
  EXPECT_TRUE(std::isnan(row.final.lse));
  for (const float dz : row.dz) EXPECT_TRUE(is_canonical_nan(dz));
}

TEST(RowFinalize, TargetAloneHasLossZero) {
  for (const std::vector<float>& logits : {std::vector{3.0f}, {3.0f, -kInfinity}, {3.0f, -kInfinity, -kInfinity}}) {
    const Row row = evaluate(logits, 0);
    EXPECT_EQ(row.final.saved.status, RowStatus::kValid);
    EXPECT_TRUE(is_positive_zero(row.final.nll));
    EXPECT_EQ(row.final.lse, 3.0);
    EXPECT_EQ(row.final.saved.non_target_probability, 0.0);
    for (const float dz : row.dz) EXPECT_TRUE(is_positive_zero(dz));
  }
  for (const float z : {kLargest, -kLargest, -0.0f}) {
    EXPECT_EQ(evaluate({z}, 0).final.lse, static_cast<double>(z));
    EXPECT_TRUE(is_positive_zero(evaluate({z}, 0).final.nll));
  }
}

TEST(RowFinalize, NothingAboveMinusInfinityIsNan) {
  expect_all_nan(evaluate({-kInfinity}, 0));
  expect_all_nan(evaluate({-kInfinity, -kInfinity}, 1));
}

TEST(RowFinalize, TargetAtMinusInfinityHasLossInfinity) {
  for (const std::vector<float>& logits : {std::vector{-kInfinity, 1.0f, 2.0f}, {-kInfinity, kJustHuge, kJustHuge}}) {
    const Row row = evaluate(logits, 0, 0.75);
    EXPECT_EQ(row.final.saved.status, RowStatus::kValid);
    EXPECT_EQ(row.final.nll, kInfinity);
    EXPECT_TRUE(std::isfinite(row.final.lse));
    EXPECT_EQ(row.final.saved.non_target_probability, 1.0);
    EXPECT_EQ(row.dz[0], -0.75f);
  }
  // Two equal others share the mass.
  const Row row = evaluate({-kInfinity, 5.0f, 5.0f}, 0);
  EXPECT_EQ(row.dz[1], 0.5f);
  EXPECT_EQ(row.dz[2], 0.5f);
}

TEST(RowFinalize, OthersAtMinusInfinityHaveGradientZero) {
  const Row row = evaluate({1.0f, -kInfinity, 2.0f}, 0, -1.0);
  EXPECT_TRUE(is_positive_zero(row.dz[1]));
  EXPECT_LT(row.dz[2], 0.0f);
}

TEST(RowFinalize, NanOrPositiveInfinityMakesTheWholeRowNan) {
  for (const float bad : {kNan, kInfinity}) {
    expect_all_nan(evaluate({1.0f, bad, 2.0f}, 0));
    expect_all_nan(evaluate({bad, 1.0f, 2.0f}, 0));
    expect_all_nan(evaluate({bad}, 0));
    expect_all_nan(evaluate({1.0f, bad, -kInfinity}, 2));
  }
}

TEST(RowFinalize, IgnoredRowIsZero) {
  const FinalRow row = finalize(RowPartial::only_flags(RowPartial::kIgnored));
  EXPECT_EQ(row.saved.status, RowStatus::kIgnored);
  EXPECT_TRUE(is_positive_zero(row.nll));
  const RowGradient gradient = row_gradient(row.saved, 1.0);
  EXPECT_TRUE(is_positive_zero(gradient.target));
  EXPECT_TRUE(is_positive_zero(non_target_gradient(gradient, kNan)));
  // An ignored row has gradient 0 even where the upstream gradient is not finite: it takes no part.
  EXPECT_TRUE(is_positive_zero(row_gradient(row.saved, static_cast<double>(kNan)).target));
}

TEST(RowFinalize, TargetOnNoShardOrOnTwoIsAStatus) {
  EXPECT_EQ(finalize(RowPartial()).saved.status, RowStatus::kTargetMissing);
  const float logit = 1.0f;
  EXPECT_EQ(finalize(row_partial(&logit, 1, -1)).saved.status, RowStatus::kTargetMissing);
  RowPartial twice = row_partial(&logit, 1, 0);
  merge(twice, row_partial(&logit, 1, 0));
  EXPECT_EQ(finalize(twice).saved.status, RowStatus::kTargetTwice);
  // The error wins over the NaN of its logits.
  merge(twice, row_partial(&kNan, 1, -1));
  EXPECT_EQ(finalize(twice).saved.status, RowStatus::kTargetTwice);
}

TEST(RowFinalize, NoMassOrNoUpstreamIsZeroWithoutForming) {
  for (const double g : {0.0, -0.0}) {
    for (const float dz : evaluate({1.0f, 2.0f, 3.0f}, 0, g).dz) EXPECT_TRUE(is_positive_zero(dz)) << g;
  }
  // exp(-m) underflows fp64: p_nt = 0.
  const Row far = evaluate({800.0f, 0.0f}, 0);
  EXPECT_TRUE(is_positive_zero(far.final.nll));
  EXPECT_EQ(far.final.lse, 800.0);
  for (const float dz : far.dz) EXPECT_TRUE(is_positive_zero(dz));
  EXPECT_TRUE(is_positive_zero(evaluate({800.0f, 0.0f}, 0, -1.0).dz[0]));
}

TEST(RowFinalize, UpstreamThatIsNotFiniteMakesGradientsNan) {
  for (const double g : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                         std::numeric_limits<double>::quiet_NaN()}) {
    for (const float dz : evaluate({1.0f, 2.0f, -kInfinity}, 0, g).dz) EXPECT_TRUE(is_canonical_nan(dz)) << g;
  }
}

TEST(RowFinalize, HugeRowsShareTheMassAmongTies) {
  // The target far below: every tie has g / ties.
  const Row below = evaluate({0.0f, kJustHuge, kJustHuge, std::nextafter(kJustHuge, 0.0f), -kInfinity}, 0, 3.0);
  EXPECT_EQ(below.final.nll, static_cast<double>(kJustHuge) + std::log(2.0));
  EXPECT_EQ(below.dz, (std::vector<float>{-3.0f, 1.5f, 1.5f, 0.0f, 0.0f}));
  // The target a tie of three others: m = -log 3.
  const Row tie = evaluate({-kLargest, -kLargest, -kLargest, -kLargest}, 2);
  EXPECT_DOUBLE_EQ(tie.final.nll, std::log(4.0));
  for (const std::size_t j : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) EXPECT_EQ(tie.dz[j], 0.25f);
  EXPECT_EQ(tie.dz[2], -0.75f);
  // The target far above: nothing is left of the others.
  const Row above = evaluate({kLargest, -kLargest}, 0);
  EXPECT_TRUE(is_positive_zero(above.final.nll));
  EXPECT_EQ(above.final.lse, static_cast<double>(kLargest));
  // A grid target beside huge negative others, and one beyond the grid beside grid others.
  EXPECT_EQ(evaluate({0.0f, -kJustHuge}, 0).final.nll, 0.0);
  EXPECT_EQ(evaluate({-kLargest, 0.0f}, 0).final.nll, static_cast<double>(kLargest));
  EXPECT_EQ(evaluate({-kLargest, 0.0f}, 0).dz, (std::vector<float>{-1.0f, 1.0f}));
}

TEST(RowFinalize, EqualLogits) {
  for (const float z : {0.0f, -3.0f, 88.0f, 65536.0f, 0x1p30f, -0x1p30f}) {
    const Row row = evaluate(std::vector<float>(4, z), 1);
    EXPECT_NEAR(row.final.nll, std::log(4.0), 1.51 * 0x1p-24);  // S is p of z times 3
    for (const std::size_t j : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
      EXPECT_NEAR(row.dz[j], 0.25f, 4.6 * 0x1p-26);
    }
  }
}

TEST(RowFinalize, ZerosOfGradientsArePositive) {
  // A gradient far below fp32, of either sign, is +0 and never -0.
  for (const double g : {1.0, -1.0, 0x1p-149, -0x1p-149}) {
    for (const float dz : evaluate({110.0f, -300.0f, 0.0f}, 0, g).dz) {
      EXPECT_TRUE(dz != 0.0f || is_positive_zero(dz)) << g;
    }
  }
}

// Where the gradient is not subnormal, a power of two goes through upstream without touching another bit.
TEST(RowFinalize, PowersOfTwoOfUpstreamScaleExactly) {
  const std::vector<float> logits{2.0f, -1.5f, 0.25f, 3.0f, -40.0f};
  const Row one = evaluate(logits, 3, 0.7);
  for (int k = -60; k <= 60; ++k) {
    const Row scaled = evaluate(logits, 3, std::ldexp(0.7, k));
    for (std::size_t j = 0; j < logits.size(); ++j) EXPECT_EQ(scaled.dz[j], std::ldexp(one.dz[j], k)) << k;
    const Row negative = evaluate(logits, 3, -std::ldexp(0.7, k));
    for (std::size_t j = 0; j < logits.size(); ++j) EXPECT_EQ(negative.dz[j], -scaled.dz[j]) << k;
  }
}

// Upstream beyond fp32's range in both directions: the exponent clamp at 300 may not touch a result that fp32 has.
TEST(RowFinalize, ExtremeUpstream) {
  EXPECT_EQ(evaluate({0.0f, 0.0f}, 0, 0x1p1000).dz[1], kInfinity);
  EXPECT_EQ(evaluate({0.0f, 0.0f}, 0, 0x1p-1000).dz[1], 0.0f);
  EXPECT_EQ(evaluate({0.0f, 0.0f}, 0, 0x1p-1074).dz[1], 0.0f);
  EXPECT_EQ(evaluate({0.0f, 0.0f}, 0, -0x1p1000).dz[1], -kInfinity);
  EXPECT_EQ(evaluate({0.0f, 0.0f}, 0, 0x1p1000).dz[0], -kInfinity);
  // exp(-200) * 2^300 is well inside fp32 although p_nt alone is not.
  MpfrReal truth(-200.0);
  mpfr_exp(truth.get(), truth.get(), MPFR_RNDN);
  mpfr_mul_2si(truth.get(), truth.get(), 300, MPFR_RNDN);
  EXPECT_LE(ulps_fp32(evaluate({200.0f, 0.0f}, 0, 0x1p300).dz[1], truth), 4.6);
}

// g p_nt / S beyond fp64, where S is below 1.
TEST(RowFinalize, UpstreamThatOverflowsTheScale) {
  const std::vector<float> logits{-100.0f, -0.5f, -650.5f};
  ASSERT_EQ(0x1.cp1023 / finalize(row_partial(logits.data(), 3, 0)).saved.sum, kInfinity);
  MpfrReal truth(-650.0);  // p_nt and exp(-0.5 - a) are 1 as far as fp32 can tell
  mpfr_exp(truth.get(), truth.get(), MPFR_RNDN);
  mpfr_mul_d(truth.get(), truth.get(), 0x1.cp1023, MPFR_RNDN);
  const Row row = evaluate(logits, 0, 0x1.cp1023);
  EXPECT_LE(ulps_fp32(row.dz[2], truth), 4.6);
  EXPECT_EQ(row.dz[1], kInfinity);
  EXPECT_EQ(row.dz[2], std::ldexp(evaluate(logits, 0, 0x1.cp1000).dz[2], 23));
  EXPECT_EQ(evaluate(logits, 0, -0x1.cp1023).dz[2], -row.dz[2]);
}

// The definition in MPFR from the digits themselves: only the fp64 roundings of finalize() are left, and their bound is
// derived in docs/accuracy.md, section 4.
TEST(RowFinalize, MarginIsWithinItsAbsoluteBound) {
  std::mt19937_64 random(30);
  for (int i = 0; i < 20'000; ++i) {
    const double scale = std::ldexp(1.0, static_cast<int>(random() % 31));
    const auto max_logit = static_cast<float>((static_cast<double>(random() >> 11) * 0x1p-52 - 1.0) * scale);
    const auto target = static_cast<float>(static_cast<double>(max_logit) +
                                           (static_cast<double>(random() >> 11) * 0x1p-52 - 0.6) * 130.0);
    RowPartial partial = row_partial(&max_logit, 1, -1);
    partial.flags = RowPartial::kTargetHere;
    partial.target_logit = target;
    partial.digits.d0 += static_cast<std::int64_t>(random() % (std::uint64_t{1} << (random() % 40)));
    partial.digits.d1 -= static_cast<std::int64_t>(random() % (std::uint64_t{1} << 30));
    partial.digits.d2 += static_cast<std::int64_t>(random() % (std::uint64_t{1} << 30));
    if (value_of(partial.digits) < 0.25) continue;

    MpfrReal sum(static_cast<double>(partial.digits.d2));
    mpfr_mul_2si(sum.get(), sum.get(), -23, MPFR_RNDN);
    mpfr_add_si(sum.get(), sum.get(), partial.digits.d1, MPFR_RNDN);
    mpfr_mul_2si(sum.get(), sum.get(), -23, MPFR_RNDN);
    mpfr_add_si(sum.get(), sum.get(), partial.digits.d0, MPFR_RNDN);
    MpfrReal log_sum, non_target, margin, loss, probability;
    mpfr_log(log_sum.get(), sum.get(), MPFR_RNDN);
    mpfr_const_log2(non_target.get(), MPFR_RNDN);
    mpfr_mul_si(non_target.get(), non_target.get(), 23L * bin_of_logit(partial.max_logit), MPFR_RNDN);
    mpfr_add(non_target.get(), non_target.get(), log_sum.get(), MPFR_RNDN);
    mpfr_d_sub(margin.get(), static_cast<double>(target), non_target.get(), MPFR_RNDN);
    mpfr_neg(loss.get(), margin.get(), MPFR_RNDN);
    mpfr_exp(loss.get(), loss.get(), MPFR_RNDN);
    mpfr_log1p(loss.get(), loss.get(), MPFR_RNDN);
    mpfr_exp(probability.get(), margin.get(), MPFR_RNDN);
    mpfr_add_si(probability.get(), probability.get(), 1, MPFR_RNDN);
    mpfr_si_div(probability.get(), 1, probability.get(), MPFR_RNDN);

    const double m = std::fabs(margin.to_double());
    const double margin_bound = 0x1p-53 * (3.0 * m + 5.0 * std::fabs(log_sum.to_double()) + 2.0);
    const FinalRow row = finalize(partial);
    // d log(loss) / dm and d log(p_nt) / dm are at most 1 in magnitude; exp, log1p, and the sum or quotient after them
    // add 1 + 1 + 1/2 ulp and 1 + 1/2 + 1/2 ulp, at most 2^-52 each.
    const double loss_error = distance(row.nll, loss, 0) / loss.to_double();
    ASSERT_LE(loss_error, margin_bound + 2.5 * 0x1p-52) << i;
    const double probability_error =
        distance(row.saved.non_target_probability, probability, 0) / probability.to_double();
    ASSERT_LE(probability_error, margin_bound + 2.0 * 0x1p-52) << i;

    MpfrReal lse;
    mpfr_add(lse.get(), loss.get(), lse.get(), MPFR_RNDN);
    mpfr_add_d(lse.get(), lse.get(), static_cast<double>(target), MPFR_RNDN);
    // a and the sum round near |z|; softplus(m) inherits m's error.
    const double lse_bound =
        margin_bound + 0x1p-53 * (3.0 * std::fabs(non_target.to_double()) + 3.0 * m + 8.0 + std::fabs(lse.to_double()));
    ASSERT_LE(distance(row.lse, lse, 0), lse_bound) << i;
  }
}

TEST(RowFinalize, SavedRowIsSmall) { EXPECT_LE(sizeof(SavedRow), 32u); }

}  // namespace
}  // namespace tpce
