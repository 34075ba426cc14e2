// Tests online.cc and liger_vocab_parallel.cc, which share the tiles.
#include "sim/methods/online.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "sim/methods/liger_vocab_parallel.h"
#include "sim/methods/megatron.h"
#include "tests/sim/sim_testing.h"

namespace tpce::sim {
namespace {

using Form = Online::Form;

TEST(Online, OneTileAndOneRankAreTheTwoPassForm) {
  const Rows rows = random_rows(16, 100, 3.0f, 41);
  const ShardPlan plan = ShardPlan::even(100, 1);
  const Ran megatron = run_on(Megatron(Megatron::Form::kUnfused), rows, plan, with(per_row()));
  const Ran online = run_on(Online(Form::kTransformerEngine), rows, plan, with(per_row()));
  // -((z - M) - log S) is the same number as log S - (z - M).
  EXPECT_EQ(online.output.nll, megatron.output.nll);
  EXPECT_EQ(online.gradient, megatron.gradient);
  const Ran tiles = run_on(LigerVocabParallel(), rows, plan, with(per_row()));
  EXPECT_EQ(tiles.output.nll, megatron.output.nll);
  EXPECT_EQ(tiles.gradient, megatron.gradient);
}

// z = [0, ln 2 2^k...]: a sum of powers of two is exact in every order and under every rescaling, since exp(-j ln 2) is
// not; so the tiles are told apart by a term that is lost beside a 1 that comes first, and kept where it came before.
TEST(Online, TilesAreAddedInTurn) {
  // 1, then two terms of half an ulp: in one tile each is lost alone (sequential); in a tile of their own they survive.
  const float lost = -24 * std::numbers::ln2_v<float>;
  const float half_ulp = std::exp(lost);
  ASSERT_LE(half_ulp, 0x1p-24f);
  const Rows rows{4, {0.0f, -100.0f, lost, lost}, {0}};
  const ReductionOrder order{SumOrder::kSequential, AllReduceOrder::kByRank, SumOrder::kSequential};
  const auto loss_of = [&](const Method& method) {
    return run_on(method, rows, ShardPlan::even(4, 1), with(per_row(), order)).output.nll[0];
  };
  for (const Form form : {Form::kTransformerEngine, Form::kFlashAttention, Form::kLiger}) {
    EXPECT_EQ(loss_of(Online(form, 4)), 0.0);
    EXPECT_GT(loss_of(Online(form, 2)), 0.0);
  }
  EXPECT_EQ(loss_of(LigerVocabParallel(4)), 0.0);
  EXPECT_GT(loss_of(LigerVocabParallel(2)), 0.0);
}

// The maximum grows from tile to tile, so each tile rescales all before it: results stay those of softmax. A factor
// exp(m - m') is within 2 ulp, its product rounded, V / tile times; the rest as in method_test.cc.
RC_GTEST_PROP(Online, RescalingKeepsTheLoss, ()) {
  const auto vocab = *rc::gen::inRange<std::int64_t>(1, 60);
  const auto tile = *rc::gen::inRange<std::int64_t>(1, 70);
  const auto tp = *rc::gen::inRange<std::int64_t>(1, 5);
  Rows rows = random_rows(3, vocab, 3.0f, *rc::gen::arbitrary<unsigned>());
  if (*rc::gen::arbitrary<bool>()) {
    for (std::size_t first = 0; first < rows.logits.size(); first += static_cast<std::size_t>(vocab)) {
      std::sort(&rows.logits[first], &rows.logits[first] + vocab);
    }
  }
  const double bound = (3.0 * static_cast<double>(vocab) + 4 + 40) * 0x1p-24 + 4 * 32 * 0x1p-24;
  for (const Form form : {Form::kTransformerEngine, Form::kFlashAttention, Form::kLiger}) {
    const Online method(form, tile);
    const ShardPlan plan = ShardPlan::even(vocab, method.one_rank_only() ? 1 : tp);
    const Ran ran = run_on(method, rows, plan, with(per_row()));
    for (std::size_t i = 0; i < 3; ++i) {
      const float* z = &rows.logits[i * static_cast<std::size_t>(vocab)];
      double total = 0.0;
      for (std::int64_t j = 0; j < vocab; ++j) total += std::exp(static_cast<double>(z[j]));
      const double exact = std::log(total) - static_cast<double>(z[rows.labels[i]]);
      RC_ASSERT(std::abs(ran.output.nll[i] - exact) <= bound);
      RC_ASSERT(std::abs(ran.output.target_grad[i] - std::expm1(-exact)) <= bound);
    }
  }
}

// lse - z_t rounds to the last place of lse: an offset of the logits, which softmax does not see, takes the loss away.
// (z_t - M) - log S does not, and neither does Liger's gradient, which keeps M and S.
TEST(Online, ALogSumExpLosesTheLossOfLargeLogits) {
  const float offset = 4096.0f;  // last place 2^-11
  const Rows rows{2, {offset + 10.0f, offset}, {0}};
  const double exact = std::log1p(std::exp(-10.0));
  const auto values = [&](Form form) {
    return run_on(Online(form), rows, ShardPlan::even(2, 1), with(per_row())).output;
  };
  EXPECT_NEAR(values(Form::kTransformerEngine).nll[0], exact, 0x1p-23);
  EXPECT_EQ(values(Form::kFlashAttention).nll[0], 0.0);
  EXPECT_EQ(values(Form::kFlashAttention).target_grad[0], 0.0);
  EXPECT_EQ(values(Form::kLiger).nll[0], 0.0);
  EXPECT_NEAR(values(Form::kLiger).target_grad[0], -exact, 0x1p-23);
}

// -inf - -inf, in the kernels as here: a first tile of nothing but -inf, which padded vocabularies have.
TEST(Online, AFirstTileOfNothingIsNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Form form : {Form::kTransformerEngine, Form::kFlashAttention, Form::kLiger}) {
    const Ran first =
        run_on(Online(form, 2), {4, {-kInfinity, -kInfinity, 1, 0}, {2}}, ShardPlan::even(4, 1), with(per_row()));
    EXPECT_TRUE(std::isnan(first.output.nll[0]));
    const Ran last =
        run_on(Online(form, 2), {4, {1, 0, -kInfinity, -kInfinity}, {0}}, ShardPlan::even(4, 1), with(per_row()));
    EXPECT_NEAR(last.output.nll[0], std::log1p(std::exp(-1.0)), 4 * 0x1p-24);
  }
}

TEST(Online, StatesWhatItSends) {
  EXPECT_EQ(Online(Form::kTransformerEngine).collectives({}).at(0).elements, 3);
  EXPECT_EQ(Online(Form::kFlashAttention).collectives({}).size(), 2u);
  EXPECT_TRUE(Online(Form::kLiger).collectives({}).empty());
  EXPECT_EQ(LigerVocabParallel().collectives({}).size(), 3u);
}

}  // namespace
}  // namespace tpce::sim
