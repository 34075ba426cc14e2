#include "tpce/scalar_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/problem.h"

namespace tpce {
namespace {

using testing::normal_logits;
using testing::Problem;

// Partials of rows over the shards given, in memory of their own.
class OwnedPartials {
 public:
  explicit OwnedPartials(std::int64_t rows)
      : memory_(static_cast<std::size_t>(rows) * 5), planes(Partials::in(memory_.data(), rows, {})) {}

 private:
  std::vector<std::uint64_t> memory_;

 public:
  Partials planes;
};

Problem<float> problem_of(std::int64_t rows, std::int64_t vocab, std::int64_t tp) {
  std::mt19937_64 random(60);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back(i % vocab);
  return {normal_logits(random, static_cast<std::size_t>(rows * vocab), 20.0), labels, ShardPlan::even(vocab, tp)};
}

TEST(ScalarBackend, ReadsWhatWidensAndWritesEveryType) {
  const Capabilities capabilities = ScalarBackend().capabilities();
  const auto lists = [](std::span<const DType> dtypes, DType dtype) {
    return std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_TRUE(lists(capabilities.logits_dtypes, dtype));
    EXPECT_TRUE(lists(capabilities.gradient_dtypes, dtype));
  }
  EXPECT_FALSE(lists(capabilities.logits_dtypes, DType::kFloat64));
  EXPECT_TRUE(lists(capabilities.gradient_dtypes, DType::kFloat64));
  EXPECT_EQ(capabilities.device, DeviceType::kCpu);
}

TEST(ScalarBackend, MemoryIsAligned) {
  const ScalarBackend backend;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, std::size_t{4096}}) {
    const Buffer buffer = backend.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.get()) % 64, 0u);
  }
}

TEST(ScalarBackend, PartialsAreThoseOfTheWholeRow) {
  Problem<float> problem = problem_of(6, 13, 4);
  problem.labels()[3] = -100;
  const Batch batch = problem.batch();
  OwnedPartials partials(4);
  ScalarBackend backend;
  backend.partials(batch, {}, {2, 4}, partials.planes, {});
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::int64_t row = 2 + i;
    const RowPartial expected =
        row == 3 ? RowPartial::only_flags(RowPartial::kIgnored)
                 : row_partial(problem.logits().data() + row * 13, 13, problem.labels()[static_cast<std::size_t>(row)]);
    EXPECT_EQ(partials.planes.load(i), expected) << row;
  }
}

TEST(ScalarBackend, MergeIsThatOfTheRows) {
  Problem<float> problem = problem_of(5, 12, 2);
  const Batch all = problem.batch();
  ScalarBackend backend;
  OwnedPartials whole(5), left(5), right(5);
  backend.partials(all, {}, {0, 5}, whole.planes, {});
  const Batch left_batch{all.plan, all.shards.subspan(0, 1), all.labels, all.vocab};
  const Batch right_batch{all.plan, all.shards.subspan(1, 1), all.labels, all.vocab};
  backend.partials(left_batch, {}, {0, 5}, left.planes, {});
  backend.partials(right_batch, {}, {0, 5}, right.planes, {});
  backend.merge(right.planes, left.planes, {});
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(right.planes.load(i), whole.planes.load(i));
}

// A backward that is cut into row ranges writes what one call writes, and the squares add up to the same bits.
TEST(ScalarBackend, GradientOfRowRanges) {
  Problem<float> problem = problem_of(9, 11, 3);
  const testing::Outcome expected = testing::run(problem.batch(), {.options = {.reduction = Reduction::kSum}});
  const Batch batch = problem.batch();
  ScalarBackend backend;
  OwnedPartials partials(9);
  backend.partials(batch, {}, {0, 9}, partials.planes, {});
  std::vector<SavedRow> saved(9);
  std::vector<float> nll(9), gradient(9 * 11);
  backend.finalize(partials.planes, {}, {.rows = 9, .saved = saved.data(), .nll = nll.data()}, {});
  EXPECT_EQ(nll, expected.nll);
  const std::vector<Matrix> gradients = testing::gradient_matrices(batch, gradient);
  BinnedSum squares;
  for (const RowRange rows : {RowRange{5, 4}, RowRange{0, 2}, RowRange{2, 3}}) {
    backend.gradient(
        batch, {},
        {.rows = rows, .saved = saved.data() + rows.first, .upstream = {}, .gradients = gradients, .squares = &squares},
        {});
  }
  EXPECT_EQ(gradient, expected.gradient);
  EXPECT_EQ(squares, expected.squares);
}

TEST(ScalarBackend, ReduceCountsAndNamesTheFirstRows) {
  const RowStatus statuses[] = {RowStatus::kValid,         RowStatus::kIgnored,     RowStatus::kNotFinite,
                                RowStatus::kTargetMissing, RowStatus::kTargetTwice, RowStatus::kNotFinite};
  std::vector<SavedRow> saved(6);
  for (std::size_t i = 0; i < saved.size(); ++i) saved[i].status = statuses[i];
  std::vector<float> nll{1.5f, 100.0f, canonical_nan(), canonical_nan(), canonical_nan(), canonical_nan()};
  ScalarBackend backend;
  LossSum sum;
  backend.reduce({.rows = 6, .saved = saved.data(), .nll = nll.data()}, 10, sum, {});
  EXPECT_EQ(sum.valid_rows, 5);
  EXPECT_EQ(sum.first_not_finite, 12);
  EXPECT_EQ(sum.first_target_missing, 13);
  EXPECT_EQ(sum.first_target_twice, 14);
  sum.nll.flags = 0;
  EXPECT_EQ(value_of(sum.nll), 1.5);
}

}  // namespace
}  // namespace tpce
