#include "tpce/batch.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/problem.h"

namespace tpce {
namespace {

TEST(Batch, ClassesInAShardStopAtTheVocabulary) {
  testing::Problem<float> problem(std::vector<float>(2 * 10), {0, 1}, ShardPlan::even(10, 4));  // widths 3 3 3 1
  const auto classes = [&](std::int64_t vocab) {
    problem.set_vocab(vocab);
    const Batch batch = problem.batch();
    std::vector<std::int64_t> counts;
    for (const Shard& shard : batch.shards) counts.push_back(batch.classes_in(shard));
    return counts;
  };
  EXPECT_EQ(classes(10), (std::vector<std::int64_t>{3, 3, 3, 1}));
  EXPECT_EQ(classes(9), (std::vector<std::int64_t>{3, 3, 3, 0}));
  EXPECT_EQ(classes(4), (std::vector<std::int64_t>{3, 1, 0, 0}));
  EXPECT_EQ(classes(1), (std::vector<std::int64_t>{1, 0, 0, 0}));
  EXPECT_EQ(problem.batch().rows(), 2);
}

}  // namespace
}  // namespace tpce
