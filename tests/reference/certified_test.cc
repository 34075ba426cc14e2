#include "reference/certified.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "reference/evaluate.h"
#include "reference/multiprecision.h"

namespace tpce::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

CertifiedRow row_of(const std::vector<double>& others, std::int64_t max_bits = Method{}.max_bits) {
  return CertifiedRow(tally_of(others), max_bits);
}

void expect_value(const Value& value, double fp64, float fp32) {
  EXPECT_TRUE(value.certified);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(value.fp64), std::bit_cast<std::uint64_t>(fp64));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(value.fp32), std::bit_cast<std::uint32_t>(fp32));
}

// Both tables: mpmath 1.3 with 80 digits, each entry rounded once.
struct LogOfVocab {
  std::int64_t vocab;
  double fp64;
  float fp32;
};
constexpr LogOfVocab kLogOfVocab[] = {
    {2, 0x1.62e42fefa39efp-1, 0x1.62e43p-1f},       {3, 0x1.193ea7aad030bp+0, 0x1.193ea8p+0f},
    {1017, 0x1.bb2cd978a04e1p+2, 0x1.bb2cdap+2f},   {50257, 0x1.5a659f6bed8c8p+3, 0x1.5a65ap+3f},
    {128256, 0x1.786087e2da908p+3, 0x1.786088p+3f}, {262144, 0x1.8f40b5ed9812dp+3, 0x1.8f40b6p+3f},
};

TEST(Certified, EqualLogitsHaveTheLogarithmOfVocab) {
  for (const LogOfVocab& c : kLogOfVocab) {
    for (double z : {0.0, -3.5, 1e8}) {
      CertifiedRow row = row_of(std::vector<double>(static_cast<std::size_t>(c.vocab - 1), z));
      const RowTruth truth = row.evaluate(z, Ratio{});
      expect_value(truth.loss, c.fp64, c.fp32);
      if (z == 0.0) expect_value(truth.lse, c.fp64, c.fp32);
      const auto v = static_cast<double>(c.vocab);
      // Quotients of small integers: one IEEE division rounds them as they should be.
      expect_value(truth.target_gradient, -(v - 1) / v, -static_cast<float>(v - 1) / static_cast<float>(v));
      expect_value(row.gradients(z, Ratio{})[0], 1 / v, 1 / static_cast<float>(v));
    }
  }
}

struct TwoClasses {
  float margin;  // z_t, beside one other logit of 0
  double loss;
  float loss_fp32;
  double share;  // p_nt
  float share_fp32;
};
constexpr TwoClasses kTwoClasses[] = {
    {-100.0f, 0x1.9p+6, 0x1.9p+6f, 0x1p+0, 0x1p+0f},
    {-1.0f, 0x1.5031eafefb049p+0, 0x1.5031eap+0f, 0x1.764d4f5d5a2bdp-1, 0x1.764d5p-1f},
    {0.0f, 0x1.62e42fefa39efp-1, 0x1.62e43p-1f, 0x1p-1, 0x1p-1f},
    {1.0f, 0x1.40c7abfbec124p-2, 0x1.40c7acp-2f, 0x1.136561454ba86p-2, 0x1.136562p-2f},
    {10.0f, 0x1.7cd564c9e0d19p-15, 0x1.7cd564p-15f, 0x1.7cd32e41dd96p-15, 0x1.7cd32ep-15f},
    {16.5f, 0x1.25284cdbb4556p-24, 0x1.25284cp-24f, 0x1.25284c33d9b27p-24, 0x1.25284cp-24f},
    {16.6355f, 0x1.00021ebde9b53p-24, 0x1.00021ep-24f, 0x1.00021e3de7969p-24, 0x1.00021ep-24f},
    {20.0f, 0x1.1b48655a5141ep-29, 0x1.1b4866p-29f, 0x1.1b4865556b5d5p-29, 0x1.1b4866p-29f},
    {88.0f, 0x1.07b7112bc1ffep-127, 0x1.07b71p-127f, 0x1.07b7112bc1ffep-127, 0x1.07b71p-127f},
    {100.0f, 0x1.a8c1f14e2af5dp-145, 0x1.bp-145f, 0x1.a8c1f14e2af5dp-145, 0x1.bp-145f},
    {103.0f, 0x1.525be4e4e601dp-149, 0x1p-149f, 0x1.525be4e4e601dp-149, 0x1p-149f},
    {103.9f, 0x1.1321ef2d263b6p-150, 0x1p-149f, 0x1.1321ef2d263b6p-150, 0x1p-149f},
    {103.97f, 0x1.00882f614c08ep-150, 0x1p-149f, 0x1.00882f614c08ep-150, 0x1p-149f},
    {104.0f, 0x1.f1e6b68529e33p-151, 0.0f, 0x1.f1e6b68529e33p-151, 0.0f},
};

TEST(Certified, MarginsOfTwoClassesDownToTheLastSubnormal) {
  CertifiedRow row = row_of({0.0});
  for (const TwoClasses& c : kTwoClasses) {
    SCOPED_TRACE(c.margin);
    const double z = c.margin;
    const RowTruth truth = row.evaluate(z, Ratio{});
    expect_value(truth.loss, c.loss, c.loss_fp32);
    expect_value(truth.target_gradient, -c.share, -c.share_fp32 + 0.0f);
    // Two gradients of one row are opposite.
    expect_value(row.gradients(z, Ratio{})[0], c.share, c.share_fp32);
  }
}

TEST(Certified, FarMarginsAreDecidedWithoutMoreBits) {
  // The values lie below or above a border of fp32 by exp(-1e6): no affordable precision tells them apart, but on which
  // side they lie is known.
  constexpr double odd_tie = 1.0 + 3 * 0x1p-24;
  CertifiedRow row = row_of({1e6}, Method::kMinBits);
  const RowTruth truth = row.evaluate(-odd_tie, Ratio{odd_tie, 1});
  expect_value(truth.target_gradient, -odd_tie, -(1.0f + 0x1p-23f));
  expect_value(row.gradients(-odd_tie, Ratio{odd_tie, 1})[0], odd_tie, 1.0f + 0x1p-23f);
  CertifiedRow tie = row_of({odd_tie}, Method::kMinBits);
  const RowTruth above = tie.evaluate(-1e6, Ratio{});
  expect_value(above.lse, odd_tie, 1.0f + 0x1p-22f);
  // loss = 1e6 + odd_tie + exp(-1e6 - odd_tie); fp32 has a sixteenth for its last place there.
  expect_value(above.loss, 1e6 + odd_tie, 1000001.0f);
}

TEST(Certified, NeedsTheBitsThatTheValueNeeds) {
  // With others e and -e beside a target at 0, p_nt = 2/3 + e^2 / 9 + ...; g = 3 + 3 * 2^-24 puts it above a tie of
  // fp32 by a third of e^2. The lower neighbour of the tie is even.
  const double g = 3.0 + 3 * 0x1p-24;
  for (const auto& [e, bits] : {std::pair{0x1p-100, 512}, std::pair{0x1p-1000, 4096}}) {
    CertifiedRow enough = row_of({e, -e}, bits);
    expect_value(enough.evaluate(0.0, Ratio{g, 1}).target_gradient, -(2.0 + 0x1p-23), -(2.0f + 0x1p-22f));
    CertifiedRow few = row_of({e, -e}, Method::kMinBits);
    const RowTruth truth = few.evaluate(0.0, Ratio{g, 1});
    EXPECT_FALSE(truth.target_gradient.certified);
    EXPECT_TRUE(truth.loss.certified);
    EXPECT_TRUE(truth.lse.certified);
  }
}

TEST(Certified, TargetOfNoMass) {
  CertifiedRow row = row_of({0.0, 0.0, -kInfinity});
  const RowTruth truth = row.evaluate(-kInfinity, Ratio{3.0, 7});
  expect_value(truth.loss, kInfinity, std::numeric_limits<float>::infinity());
  expect_value(truth.lse, kLogOfVocab[0].fp64, kLogOfVocab[0].fp32);
  expect_value(truth.target_gradient, -3.0 / 7.0, -3.0f / 7.0f);
  expect_value(row.gradients(-kInfinity, Ratio{3.0, 7})[0], 3.0 / 14.0, 3.0f / 14.0f);
  CertifiedRow one = row_of({2.5});
  expect_value(one.evaluate(-kInfinity, Ratio{}).lse, 2.5, 2.5f);
}

TEST(Certified, TheWholeRangeOfFp64) {
  constexpr double largest = std::numeric_limits<double>::max();
  CertifiedRow row = row_of({largest, -largest, 0.0});
  const RowTruth truth = row.evaluate(-largest, Ratio{});
  EXPECT_EQ(truth.loss.fp64, kInfinity);  // twice the largest double
  expect_value(truth.lse, largest, std::numeric_limits<float>::infinity());
  expect_value(truth.target_gradient, -1.0, -1.0f);
  const std::vector<Value> gradients = row.gradients(-largest, Ratio{});
  expect_value(gradients[0], 0.0, 0.0f);
  expect_value(gradients[1], 0.0, 0.0f);
  expect_value(gradients[2], 1.0, 1.0f);
  expect_value(row.evaluate(largest, Ratio{}).loss, kLogOfVocab[0].fp64, kLogOfVocab[0].fp32);
}

// Equal finite logits: the exact values are quotients of integers, which one IEEE division rounds right, ties included.
RC_GTEST_PROP(CertifiedProperty, RationalValuesAreDecided, ()) {
  const auto k = *rc::gen::inRange<std::int64_t>(1, 200);
  const auto numerator = *rc::gen::inRange<std::int64_t>(-70000, 70000);
  const auto denominator = *rc::gen::inRange<std::int64_t>(1, 80000);
  const auto z = static_cast<double>(*rc::gen::inRange(-1000, 1000)) / 16;
  CertifiedRow row(tally_of(std::vector<double>(static_cast<std::size_t>(k), z)), Method::kMinBits);
  const Ratio g{static_cast<double>(numerator), denominator};
  const Value target = row.evaluate(z, g).target_gradient;
  RC_ASSERT(target.certified);
  const std::int64_t top = -numerator * k;
  const std::int64_t bottom = denominator * (k + 1);
  RC_ASSERT(target.fp64 == static_cast<double>(top) / static_cast<double>(bottom));
  const Value other = row.gradients(z, g)[0];
  RC_ASSERT(other.certified);
  RC_ASSERT(other.fp64 == static_cast<double>(numerator) / static_cast<double>(bottom));
  // One fp32 division is as good where both sides have no more than its 24 bits.
  constexpr std::int64_t exact = 1 << 24;
  if (bottom < exact) RC_ASSERT(other.fp32 == static_cast<float>(numerator) / static_cast<float>(bottom));
  if (bottom < exact && std::abs(top) < exact) {
    RC_ASSERT(target.fp32 == static_cast<float>(top) / static_cast<float>(bottom));
  }
}

// Ties of fp32 as exact values: g / 2 halfway between two floats goes to the even one.
RC_GTEST_PROP(CertifiedProperty, TiesGoToEven, ()) {
  const auto mantissa = *rc::gen::inRange<std::int32_t>(1 << 23, 1 << 24);
  const double tie = (static_cast<double>(mantissa) + 0.5) * 0x1p-23;
  CertifiedRow row(tally_of(std::vector<double>{4.0}), Method::kMinBits);
  const Value value = row.evaluate(4.0, Ratio{2 * tie, 1}).target_gradient;
  const std::int32_t even = mantissa + mantissa % 2;
  RC_ASSERT(value.certified);
  RC_ASSERT(value.fp64 == -tie);
  RC_ASSERT(value.fp32 == -static_cast<float>(even) * 0x1p-23f);
}

// A second program and another number type: 100 digits leave no doubt about a rounding of random values.
RC_GTEST_PROP(CertifiedProperty, EqualsRoundedMultiprecision, ()) {
  const auto count = *rc::gen::inRange<std::size_t>(1, 60);
  const auto unit = *rc::gen::element(0x1p-20, 0x1p-4, 0.25, 16.0);
  const auto raw = *rc::gen::container<std::vector<int>>(count, rc::gen::inRange(-300, 300));
  std::vector<double> others;
  for (int r : raw) others.push_back(r * unit);
  const double target = *rc::gen::inRange(-400, 400) * unit;
  const Ratio g{*rc::gen::element(1.0, -0.37, 3e-40, 1024.0), *rc::gen::element<std::int64_t>(1, 3, 64, 8191)};
  CertifiedRow certified(tally_of(others), Method{}.max_bits);
  MultiprecisionRow rounded(tally_of(others), 100);
  const RowTruth a = certified.evaluate(target, g);
  const RowTruth b = rounded.evaluate(target, g);
  const auto same = [](const Value& x, const Value& y) {
    RC_ASSERT(x.certified);
    RC_ASSERT(x.fp64 == y.fp64);
    RC_ASSERT(x.fp32 == y.fp32);
  };
  same(a.loss, b.loss);
  same(a.lse, b.lse);
  same(a.target_gradient, b.target_gradient);
  const std::vector<Value> x = certified.gradients(target, g);
  const std::vector<Value> y = rounded.gradients(target, g);
  RC_ASSERT(x.size() == y.size());
  for (std::size_t i = 0; i < x.size(); ++i) same(x[i], y[i]);
}

// 60 rows of V = 1024, margins 0 to 100, evaluated to 60 digits by another program (tests/data/peers/README.md).
TEST(Certified, EqualsAnotherProgramsTruth) {
  const io::SafetensorsFile file(io::MappedFile(TPCE_TEST_DATA "/peers/margins_fp32.safetensors"));
  const io::Tensor logits = file.tensor("logits");
  const io::Tensor labels = file.tensor("labels");
  const io::Tensor losses = file.tensor("truth.loss");
  const io::Tensor gradients = file.tensor("truth.target_grad");
  ASSERT_EQ(logits.shape, (std::vector<std::int64_t>{60, 1024}));
  const ShardPlan plan = ShardPlan::even(1024, 3);
  const ConstMatrix all = matrix_of(static_cast<const float*>(logits.data), 60, 1024);
  std::vector<Shard> shards;
  for (std::int64_t i = 0; i < plan.tp(); ++i) {
    shards.push_back({all.column_range(plan.first_class(i), plan.width(i)), i});
  }
  const Batch batch{plan, shards, Labels(static_cast<const std::int64_t*>(labels.data), 60), 1024};
  const Evaluation evaluation = evaluate({batch, {}, {}}, {});
  EXPECT_TRUE(undecided(evaluation, {}).empty());
  for (std::size_t row = 0; row < 60; ++row) {
    SCOPED_TRACE(row);
    EXPECT_EQ(evaluation.rows[row].loss.fp64, static_cast<const double*>(losses.data)[row]);
    EXPECT_EQ(evaluation.rows[row].target_gradient.fp64, static_cast<const double*>(gradients.data)[row]);
  }
}

TEST(Certified, TargetsBesideOneRowDoNotDisturbEachOther) {
  CertifiedRow row = row_of({0.5, -1.25, 3.0});
  const RowTruth first = row.evaluate(7.0, Ratio{});
  (void)row.evaluate(-1e5, Ratio{0.1, 3});
  const RowTruth again = row.evaluate(7.0, Ratio{});
  expect_value(again.loss, first.loss.fp64, first.loss.fp32);
  expect_value(again.target_gradient, first.target_gradient.fp64, first.target_gradient.fp32);
}

}  // namespace
}  // namespace tpce::reference
