// Loss, target gradient, gradients and their sum over all margins, against certified values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <iostream>
#include <random>
#include <vector>

#include "tests/support/certified_sweep.h"
#include "tests/support/problem.h"

namespace tpce {
namespace {

using testing::CertifiedSweep;
using testing::margins;
using testing::normal_logits;
using testing::Worst;

// V - 1 logits of the deviation given, plus an offset, as fp32 holds them there.
std::vector<float> non_targets(std::mt19937_64& random, std::int64_t vocab, double deviation, double offset) {
  std::vector<float> logits = normal_logits(random, static_cast<std::size_t>(vocab - 1), deviation);
  for (float& logit : logits) logit = static_cast<float>(static_cast<double>(logit) + offset);
  return logits;
}

void sweep(CertifiedSweep& row, double loss_step, double gradient_step, double g) {
  const double a = row.non_target_lse();
  for (const double margin : margins(loss_step)) row.check_loss(static_cast<float>(a + margin), g);
  for (double margin = -100.0; margin <= 104.0; margin += gradient_step) {
    row.check_gradients(static_cast<float>(a + margin), g);
  }
}

class Margins : public ::testing::TestWithParam<std::int64_t> {};

// The small vocabularies: every gradient of every row. A few classes are the hardest case, since nothing averages out.
TEST_P(Margins, OfSmallVocabularies) {
  std::mt19937_64 random(80);
  const std::int64_t vocab = GetParam();
  const int rows = vocab < 10 ? 12 : 1;
  Worst worst;
  for (const double deviation : {1.0, 3.0, 10.0}) {
    for (const double offset : {0.0, 300.0, -65536.0, 65536.0, 1e8, -1e8, 1e9}) {
      for (int i = 0; i < rows; ++i) {
        CertifiedSweep row(non_targets(random, vocab, deviation, offset));
        sweep(row, vocab < 10 ? 2.5 : 1.0, vocab < 10 ? 12.75 : 25.5, i % 2 == 0 ? 1.0 : -0.7);
        merge(worst, row.worst);
      }
    }
  }
  std::cout << "V = " << vocab << ": " << worst << '\n';
}
INSTANTIATE_TEST_SUITE_P(Vocabularies, Margins, ::testing::Values(2, 3, 1017));

// Losses beside all of a large vocabulary in fp32; gradients of bf16 logits, whose values repeat.
class LargeMargins : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(LargeMargins, OfLargeVocabularies) {
  std::mt19937_64 random(81);
  const std::int64_t vocab = GetParam();
  Worst worst;
  for (const double deviation : {1.0, 3.0, 10.0}) {
    std::vector<float> logits = non_targets(random, vocab, deviation, 0.0);
    for (float& logit : logits) {
      BFloat16 narrow;
      round_to(logit, &narrow);
      logit = widen(narrow);
    }
    CertifiedSweep row(logits);
    sweep(row, 0.5, 68.0, 1.0);
    merge(worst, row.worst);
  }
  CertifiedSweep wide(non_targets(random, vocab, 1.0, 0.0));
  const double a = wide.non_target_lse();
  for (const double margin : margins(4.0)) wide.check_loss(static_cast<float>(a + margin));
  merge(worst, wide.worst);
  std::cout << "V = " << vocab << ": " << worst << '\n';
}
INSTANTIATE_TEST_SUITE_P(Vocabularies, LargeMargins, ::testing::Values(50257, 128256, 262144));

// Gradients of fp32 logits in a large vocabulary: each of up to 262,144 values is certified.
TEST(MarginsExhaustive, OfLargeVocabularies) {
  std::mt19937_64 random(84);
  for (const std::int64_t vocab : {50257, 128256, 262144}) {
    Worst worst;
    for (const double deviation : {1.0, 3.0, 10.0}) {
      CertifiedSweep row(non_targets(random, vocab, deviation, 0.0));
      sweep(row, 0.1, 25.5, 1.0);
      merge(worst, row.worst);
    }
    std::cout << "V = " << vocab << ": " << worst << '\n';
  }
}

TEST(MarginsExhaustive, OfManyRowsOfFewClasses) {
  std::mt19937_64 random(85);
  for (const std::int64_t vocab : {2, 3, 10}) {
    Worst worst;
    for (int i = 0; i < 200'000; ++i) {
      const double offset = (testing::uniform(random) - 0.5) * std::ldexp(1.0, static_cast<int>(random() % 30));
      CertifiedSweep row(non_targets(random, vocab, 5.0, offset));
      const auto target = static_cast<float>(row.non_target_lse() + (testing::uniform(random) - 0.5) * 208.0);
      row.check_loss(target);
      row.check_gradients(target);
      merge(worst, row.worst);
    }
    std::cout << "V = " << vocab << ": " << worst << '\n';
  }
}

TEST(Margins, OfEqualLogits) {
  Worst worst;
  for (const std::int64_t vocab : {2, 3, 1017, 50257, 262144}) {
    for (const float value : {0.0f, -0.0f, 1.0f, -7.3f, 88.0f, 1e8f, -1e9f, 0x1p30f}) {
      CertifiedSweep row(std::vector<float>(static_cast<std::size_t>(vocab - 1), value));
      sweep(row, 4.0, 12.75, 1.0);
      row.check_gradients(value);
      merge(worst, row.worst);
    }
  }
  std::cout << "equal: " << worst << '\n';
}

// z = [20, 0] holds margin 20 exactly; the usual fp32 loss is 0 there.
TEST(Margins, TwentyIsNotZero) {
  CertifiedSweep row({0.0f});
  row.check_loss(20.0f);
  RowPartial partial = row_partial(std::vector<float>{20.0f, 0.0f}.data(), 2, 0);
  EXPECT_EQ(bit_cast<std::uint32_t>(static_cast<float>(finalize(partial).nll)), 0x310da433u);
  EXPECT_NEAR(finalize(partial).nll, 2.0611536e-9, 1e-16);
}

// The loss is 0 only where its true value rounds to 0 in fp32, at margins beyond 150 ln 2 = 103.97.
TEST(Margins, LossEndsWhereFp32Ends) {
  const auto loss = [](float margin) {
    const std::vector<float> logits{margin, 0.0f};
    return static_cast<float>(finalize(row_partial(logits.data(), 2, 0)).nll);
  };
  EXPECT_EQ(loss(103.97f), 0x1p-149f);
  EXPECT_EQ(loss(103.98f), 0.0f);
}

// The hardest rows are those of two classes, where one p is the whole sum: many of them.
TEST(Margins, OfManyRowsOfTwoClasses) {
  std::mt19937_64 random(82);
  Worst worst;
  for (int i = 0; i < 4'000; ++i) {
    CertifiedSweep row({static_cast<float>((testing::uniform(random) - 0.5) * 200.0)});
    const auto target = static_cast<float>(row.non_target_lse() + (testing::uniform(random) - 0.5) * 200.0);
    row.check_loss(target);
    row.check_gradients(target);
    merge(worst, row.worst);
  }
  std::cout << "V = 2, many rows: " << worst << '\n';
}

// A vocabulary of one: the target is alone, the loss exactly 0.
TEST(Margins, OfOneClass) {
  for (const float z : {0.0f, -50.0f, 1e9f, 3e38f}) {
    testing::Problem<float> problem({z}, {0}, ShardPlan::even(1, 1));
    const testing::Outcome outcome = testing::run(problem.batch());
    EXPECT_EQ(bit_cast<std::uint32_t>(outcome.nll[0]), 0u);
    EXPECT_EQ(outcome.lse[0], z);
    EXPECT_EQ(bit_cast<std::uint32_t>(outcome.gradient[0]), 0u);
  }
}

// The sweeps above set z_t beside a finished sum. Here the target is a class: first and last of every shard.
TEST(Margins, TargetOnEachShard) {
  std::mt19937_64 random(83);
  constexpr std::int64_t kVocab = 1'017;
  const std::vector<float> others = non_targets(random, kVocab, 3.0, 0.0);
  CertifiedSweep row(others);
  const auto z_t = static_cast<float>(row.non_target_lse() + 16.6355);
  row.check_loss(z_t);
  const RowPartial sum = row_partial(others.data(), kVocab - 1, -1);
  RowPartial expected = sum;
  expected.target_logit = z_t;
  expected.flags = RowPartial::kTargetHere;
  const auto loss = static_cast<float>(finalize(expected).nll);
  for (const std::int64_t tp : {1, 2, 3, 8}) {
    const ShardPlan plan = ShardPlan::even(kVocab, tp);
    for (std::int64_t s = 0; s < tp; ++s) {
      if (plan.width(s) == 0) continue;
      for (const std::int64_t target : {plan.first_class(s), plan.first_class(s + 1) - 1}) {
        std::vector<float> logits = others;
        logits.insert(logits.begin() + target, z_t);
        testing::Problem<float> problem(logits, {target}, plan);
        ASSERT_EQ(testing::run(problem.batch()).nll[0], loss) << tp << ' ' << target;
      }
    }
    // Off the end.
    testing::Problem<float> problem(std::vector<float>(kVocab, 0.0f), {kVocab}, plan);
    EXPECT_EQ(testing::refusal([&] { testing::run(problem.batch()); }),
              "labels: row 0 has label 1017, expected 0..1016 or ignore_index -100");
  }
}

}  // namespace
}  // namespace tpce
