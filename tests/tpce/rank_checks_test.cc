#include "tpce/rank_checks.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/problem.h"
#include "tests/support/two_ranks.h"
#include "tpce/checks.h"
#include "tpce/scalar_backend.h"

namespace tpce {
namespace {

using testing::Problem;
using testing::refusal;

// What one rank brings to a loss of 3 rows and 8 columns over shards of widths 3, 3, 2: rank 0 holds the first two, and
// rank 1 the last.
struct Rank {
  explicit Rank(std::int64_t rank) {
    std::erase_if(problem.shards(), [&](const Shard& shard) { return (shard.index < 2) != (rank == 0); });
  }

  Problem<float> problem{std::vector<float>(24, 0.5f), {0, 7, 3}, ShardPlan::even(8, 3)};
  Options options;
  std::int64_t rows_per_chunk = 16;
};

// The refusal that both ranks give where rank 1 was changed.
std::string refusal_where(const std::function<void(Rank&)>& change_rank_1,
                          const std::function<void(Rank&)>& change_rank_0 = {}) {
  std::array<std::vector<std::string>, 2> logs;
  std::array<std::string, 2> refusals;
  const auto errors = testing::on_two_ranks(logs, [&](testing::TwoRanks& communicator) {
    Rank rank(communicator.rank());
    if (communicator.rank() == 1) change_rank_1(rank);
    if (communicator.rank() == 0 && change_rank_0) change_rank_0(rank);
    ScalarBackend backend;
    refusals[static_cast<std::size_t>(communicator.rank())] = refusal([&] {
      check_ranks(rank.problem.batch(), rank.options, {backend, communicator, rank.rows_per_chunk});
    });
  });
  EXPECT_EQ(errors, (std::array<std::string, 2>{}));
  EXPECT_EQ(refusals[0], refusals[1]);
  return refusals[0];
}

// The rank with every shard of the plan.
void hold_everything(Rank& rank) { rank.problem.set_plan(ShardPlan::even(8, 3)); }

TEST(RankChecks, AcceptRanksThatFit) {
  EXPECT_EQ(refusal_where([](Rank&) {}), "accepted");
  EXPECT_EQ(refusal_where([](Rank& rank) { rank.problem.shards().clear(); }, hold_everything), "accepted");
}

TEST(RankChecks, NameTheRankWhoseBatchIsRefused) {
  EXPECT_EQ(refusal_where([](Rank& rank) { rank.problem.labels()[1] = 8; }),
            "rank 1 of 2: labels: row 1 has label 8, expected 0..7 or ignore_index -100");
  const auto spoil = [](Rank& rank) { rank.problem.shards()[0].logits.cols = 5; };
  EXPECT_EQ(refusal_where([](Rank&) {}, spoil), "rank 0 of 2: logits of shard 0: shape is [3, 5], expected [3, 3]");
  EXPECT_EQ(refusal_where(spoil, spoil), "rank 0 of 2: logits of shard 0: shape is [3, 5], expected [3, 3]");
  EXPECT_EQ(
      refusal_where(
          [](Rank& rank) { rank.problem.shards()[0].logits = matrix_of(rank.problem.logits().data(), 3, 8); }),
      "rank 1 of 2: logits of shard 2: got the full logits, 8 columns, expected the 2 columns of the shard alone");
}

TEST(RankChecks, TellOfAnErrorThatAllRanksHaveOnce) {
  const auto spoil = [](Rank& rank) { rank.problem.labels()[1] = 8; };
  EXPECT_EQ(refusal_where(spoil, spoil), "labels: row 1 has label 8, expected 0..7 or ignore_index -100");
}

// Labels that check_ranks() did not compare, as on devices: what the merge found bad is told alike, with its rank.
TEST(RankChecks, TellAlikeOfABadLabelThatTheMergeFound) {
  const auto refusal_of = [](const std::array<std::int64_t, 2>& labels) {
    std::array<std::vector<std::string>, 2> logs;
    const auto errors = testing::on_two_ranks(logs, [&](testing::TwoRanks& communicator) {
      Rank rank(communicator.rank());
      rank.problem.labels()[1] = labels[static_cast<std::size_t>(communicator.rank())];
      ScalarBackend backend;
      LossSum sum;
      sum.first_bad_label = 1;
      check_rows(sum, rank.problem.batch(), rank.options, {backend, communicator});
    });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  };
  EXPECT_EQ(refusal_of({8, 8}), "labels: row 1 has label 8, expected 0..7 or ignore_index -100");
  EXPECT_EQ(refusal_of({3, -8}), "rank 1 of 2: labels: row 1 has label -8, expected 0..7 or ignore_index -100");
  EXPECT_EQ(refusal_of({9, -8}), "rank 0 of 2: labels: row 1 has label 9, expected 0..7 or ignore_index -100");
}

TEST(RankChecks, RefuseRanksOfDifferentProblems) {
  EXPECT_EQ(refusal_where([](Rank& rank) {
              rank.problem.labels().pop_back();
              for (Shard& shard : rank.problem.shards()) shard.logits.rows = 2;
            }),
            "rows: rank 1 has 2 and rank 0 has 3, expected the same");
  EXPECT_EQ(refusal_where([](Rank& rank) { rank.problem.labels()[2] = 4; }),
            "labels: rank 1 has others than rank 0, expected the same");
  EXPECT_EQ(
      refusal_where([](Rank& rank) { rank.problem.set_vocab(7); }, [](Rank& rank) { rank.problem.labels()[1] = 1; }),
      "rank 1 of 2: labels: row 1 has label 7, expected 0..6 or ignore_index -100");
  EXPECT_EQ(refusal_where(
                [](Rank& rank) {
                  rank.problem.set_vocab(7);
                  rank.problem.labels()[1] = 1;
                },
                [](Rank& rank) { rank.problem.labels()[1] = 1; }),
            "vocab: rank 1 has 7 and rank 0 has 8, expected the same");
  EXPECT_EQ(refusal_where([](Rank& rank) { rank.problem.set_plan(ShardPlan::even(8, 4)); }),
            "tp: rank 1 has 4 and rank 0 has 3, expected the same");
  EXPECT_EQ(refusal_where([](Rank& rank) {
              rank.problem.set_plan(ShardPlan::from_widths(8, std::vector<std::int64_t>{2, 3, 3}));
            }),
            "boundaries of the shards: rank 1 has others than rank 0, expected the same");
  EXPECT_EQ(refusal_where([](Rank& rank) { rank.rows_per_chunk = 8; }),
            "rows_per_chunk: rank 1 has 8 and rank 0 has 16, expected the same");
  EXPECT_EQ(refusal_where([](Rank& rank) { rank.options.ignore_index = 9; }),
            "ignore_index: rank 1 has 9 and rank 0 has -100, expected the same");
  EXPECT_EQ(refusal_where([](Rank& rank) { rank.options.reduction = Reduction::kSum; }),
            "reduction: rank 1 has others than rank 0, expected the same");
  EXPECT_EQ(refusal_where([](Rank& rank) { rank.options.empty_mean = EmptyMean::kZero; }),
            "empty_mean: rank 1 has others than rank 0, expected the same");
  EXPECT_EQ(refusal_where([](Rank& rank) { rank.options.non_finite_row = NonFiniteRow::kError; }),
            "non_finite_row: rank 1 has others than rank 0, expected the same");
}

// The digest tells labels apart that only swap or differ in a high bit.
TEST(RankChecks, LabelsThatDifferInOrder) {
  EXPECT_EQ(refusal_where([](Rank& rank) { std::swap(rank.problem.labels()[0], rank.problem.labels()[2]); }),
            "labels: rank 1 has others than rank 0, expected the same");
}

TEST(RankChecks, ShardsThatNoRankOrTwoRanksHold) {
  EXPECT_EQ(refusal_where([](Rank& rank) { rank.problem.shards().clear(); }),
            "shards: shard 2 of 3 is held by none of the 2 ranks");
  EXPECT_EQ(refusal_where(hold_everything), "shards: shard 0 of 3 is held by rank 0 and by rank 1, expected one rank");
}

TEST(RankChecks, OneRankNeedsEveryShard) {
  Rank rank(0);
  ScalarBackend backend;
  SelfCommunicator self;
  EXPECT_EQ(refusal([&] {
              check_ranks(rank.problem.batch(), rank.options, {backend, self});
            }),
            "shards: shard 2 of 3 is missing, and no other rank holds it");
  hold_everything(rank);
  EXPECT_EQ(refusal([&] { check_ranks(rank.problem.batch(), rank.options, {backend, self}); }), "accepted");
}

}  // namespace
}  // namespace tpce
