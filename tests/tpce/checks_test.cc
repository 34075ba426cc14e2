#include "tpce/checks.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/support/problem.h"
#include "tests/support/two_ranks.h"
#include "tpce/scalar_backend.h"

namespace tpce {
namespace {

using testing::gradient_matrices;
using testing::Problem;
using testing::refusal;

// A batch of 3 rows and 8 columns over shards of widths 3, 3, 2, that a test then spoils.
class Checks : public ::testing::Test {
 protected:
  std::string batch_refusal() {
    SelfCommunicator self;
    return refusal([&] { check_batch(problem.batch(), options, backend, self); });
  }
  std::string gradient_refusal(std::span<const Matrix> gradients) {
    return refusal([&] { check_gradients(problem.batch(), gradients, backend); });
  }
  bool in_place(std::span<const Matrix> gradients) {
    return check_gradients(problem.batch(), gradients, backend).in_place;
  }
  std::vector<Matrix> fresh_gradients() { return gradient_matrices(problem.batch(), memory); }
  Shard& shard(std::size_t index) { return problem.shards()[index]; }

  Problem<float> problem{std::vector<float>(24, 0.5f), {0, 7, 3}, ShardPlan::even(8, 3)};
  Options options;
  ScalarBackend backend;
  std::vector<float> memory = std::vector<float>(100);
};

TEST_F(Checks, AcceptsWhatFits) {
  EXPECT_EQ(batch_refusal(), "accepted");
  EXPECT_EQ(gradient_refusal(fresh_gradients()), "accepted");
  EXPECT_EQ(gradient_refusal({}), "accepted");
}

TEST_F(Checks, Shape) {
  shard(1).logits.cols = 4;
  EXPECT_EQ(batch_refusal(), "logits of shard 1: shape is [3, 4], expected [3, 3]");
  shard(1).logits.cols = 3;
  shard(1).logits.rows = 2;
  EXPECT_EQ(batch_refusal(), "logits of shard 1: shape is [2, 3], expected [3, 3]");
}

TEST_F(Checks, Stride) {
  shard(0).logits.row_stride = 2;
  EXPECT_EQ(batch_refusal(), "logits of shard 0: row_stride is 2, expected at least the width, 3");
  shard(0).logits.row_stride = -8;
  EXPECT_EQ(batch_refusal(), "logits of shard 0: row_stride is -8, expected at least the width, 3");
  shard(0).logits.row_stride = std::int64_t{1} << 60;  // 3 rows of it in fp32 are 3 * 2^62 bytes
  EXPECT_EQ(batch_refusal(),
            "logits of shard 0: row_stride is 1152921504606846976, with which 3 rows exceed 2^63 - 1 bytes");
}

TEST_F(Checks, NullAndUnalignedData) {
  void* bytes = memory.data();
  shard(2).logits.data = static_cast<char*>(bytes) + 2;
  EXPECT_EQ(batch_refusal(), "logits of shard 2: data is not aligned to its elements of fp32");
  shard(2).logits.data = nullptr;
  EXPECT_EQ(batch_refusal(), "logits of shard 2: data is null");
}

TEST_F(Checks, NullIsAllowedWhereNothingIsRead) {
  problem.set_plan(ShardPlan::from_widths(8, std::vector<std::int64_t>{8, 0}));
  shard(1).logits.data = nullptr;
  EXPECT_EQ(batch_refusal(), "accepted");
}

TEST_F(Checks, ShardIndex) {
  shard(1).index = 3;
  EXPECT_EQ(batch_refusal(), "shards: got shard 3, expected 0..2");
  shard(1).index = -1;
  EXPECT_EQ(batch_refusal(), "shards: got shard -1, expected 0..2");
  shard(1).index = 0;
  EXPECT_EQ(batch_refusal(), "logits of shard 0: given twice");
}

TEST_F(Checks, MissingShard) {
  problem.shards().erase(problem.shards().begin() + 1);
  EXPECT_EQ(batch_refusal(), "shards: shard 1 of 3 is missing, and no other rank holds it");
  testing::Meeting meeting;
  testing::TwoRanks ranks(meeting, 0);  // another rank may hold it
  EXPECT_EQ(refusal([&] { check_batch(problem.batch(), options, backend, ranks); }), "accepted");
}

TEST_F(Checks, FullLogitsAsAShard) {
  shard(1).logits = matrix_of<const float>(memory.data(), 3, 8);
  EXPECT_EQ(batch_refusal(),
            "logits of shard 1: got the full logits, 8 columns, expected the 3 columns of the shard alone");
}

TEST_F(Checks, Vocab) {
  for (const std::int64_t vocab : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{9}}) {
    problem.set_vocab(vocab);
    EXPECT_EQ(batch_refusal(), "vocab: got " + std::to_string(vocab) + ", expected 1..8, the columns of the plan");
  }
}

TEST_F(Checks, Labels) {
  problem.labels()[1] = 8;
  EXPECT_EQ(batch_refusal(), "labels: row 1 has label 8, expected 0..7 or ignore_index -100");
  problem.labels()[1] = -1;
  EXPECT_EQ(batch_refusal(), "labels: row 1 has label -1, expected 0..7 or ignore_index -100");
  problem.labels()[1] = -100;
  EXPECT_EQ(batch_refusal(), "accepted");
  options.ignore_index = 5;
  EXPECT_EQ(batch_refusal(), "labels: row 1 has label -100, expected 0..7 or ignore_index 5");
  problem.labels()[1] = 6;
  problem.set_vocab(6);  // a label among the padding
  EXPECT_EQ(batch_refusal(), "labels: row 1 has label 6, expected 0..5 or ignore_index 5");
}

TEST_F(Checks, LabelsThatCannotBeRead) {
  Batch batch = problem.batch();
  SelfCommunicator self;
  const auto refused = [&] { return refusal([&] { check_batch(batch, options, backend, self); }); };
  batch.labels = Labels(problem.labels().data(), 3, {DeviceType::kCuda, 0});
  EXPECT_EQ(refused(), "labels: neither in host memory nor in that of backend 'scalar'");
  batch.labels = Labels(static_cast<const std::int32_t*>(nullptr), 3);
  EXPECT_EQ(refused(), "labels: data is null");
  std::vector<Shard> shards = problem.shards();
  for (Shard& shard : shards) shard.logits.rows = -3;
  batch.shards = shards;
  batch.labels = Labels(problem.labels().data(), -3);
  EXPECT_EQ(refused(), "labels: got -3 of them, expected at least 0");
}

TEST_F(Checks, Fp64Logits) {
  const std::vector<double> logits(9);
  shard(1).logits = matrix_of(logits.data(), 3, 3);
  EXPECT_EQ(batch_refusal(),
            "logits of shard 1: dtype is fp64, which the canonical algorithm does not take; either cast to fp32 (round "
            "to nearest; values beyond the largest fp32 become infinite), or use the fp64, multiprecision or certified "
            "reference");
}

TEST_F(Checks, Place) {
  shard(1).logits.place.type = DeviceType::kCuda;
  EXPECT_EQ(batch_refusal(), "logits of shard 1: not in the memory of backend 'scalar'");
  std::vector<Matrix> gradients = fresh_gradients();
  gradients[2].place.type = DeviceType::kCuda;
  shard(1).logits.place.type = DeviceType::kCpu;
  EXPECT_EQ(gradient_refusal(gradients), "gradient of shard 2: not in the memory of backend 'scalar'");
}

// Reaches no memory at all.
class Unreachable final : public Communicator {
 public:
  std::string_view name() const override { return "unreachable"; }
  std::int64_t size() const override { return 1; }
  std::int64_t rank() const override { return 0; }
  bool accepts(DeviceType) const override { return false; }
  Pending start_all_reduce(const Partials&, Backend&, Queue) override { return {}; }
  void finish(Pending, Queue) override {}
  void all_reduce(BinnedSum&) override {}
  std::vector<std::string> all_gather(std::string_view) override { return {}; }
  void abort(std::string_view) noexcept override {}
};

TEST_F(Checks, CommunicatorThatDoesNotReachTheBackend) {
  Unreachable communicator;
  EXPECT_EQ(refusal([&] { check_batch(problem.batch(), options, backend, communicator); }),
            "communicator: 'unreachable' does not reach the memory of backend 'scalar'");
}

TEST_F(Checks, RowsAfterTheMerge) {
  const auto rows_refusal = [&](const LossSum& sum) {
    SelfCommunicator self;
    return refusal([&] { check_rows(sum, problem.batch(), options, {backend, self}); });
  };
  EXPECT_EQ(rows_refusal({}), "accepted");
  LossSum sum;
  sum.first_not_finite = 4;
  EXPECT_EQ(rows_refusal(sum), "accepted");
  options.non_finite_row = NonFiniteRow::kError;
  EXPECT_EQ(rows_refusal(sum), "logits: row 4 holds NaN or +inf, or nothing above -inf; its loss is NaN");
  sum.first_target_twice = 9;
  EXPECT_EQ(rows_refusal(sum), "shards: the target of row 9 is held by two shards");
  sum.first_target_missing = 2;
  EXPECT_EQ(rows_refusal(sum), "shards: the target of row 2 is held by no shard");
  sum.first_bad_label = 1;
  EXPECT_EQ(rows_refusal(sum), "labels: row 1 had a bad label, which was overwritten since");
  problem.labels()[1] = 8;
  EXPECT_EQ(rows_refusal(sum), "labels: row 1 has label 8, expected 0..7 or ignore_index -100");
}

TEST_F(Checks, GradientCount) {
  std::vector<Matrix> gradients = fresh_gradients();
  gradients.pop_back();
  EXPECT_EQ(gradient_refusal(gradients), "gradients: got 2 matrices, expected one for each of 3 shards");
}

TEST_F(Checks, GradientShapeAndStride) {
  std::vector<Matrix> gradients = fresh_gradients();
  gradients[2].cols = 3;
  EXPECT_EQ(gradient_refusal(gradients), "gradient of shard 2: shape is [3, 3], expected [3, 2]");
  gradients = fresh_gradients();
  gradients[0].row_stride = 1;
  EXPECT_EQ(gradient_refusal(gradients), "gradient of shard 0: row_stride is 1, expected at least the width, 3");
}

// Says that it writes nothing but fp32.
class OnlyFloat final : public Backend {
 public:
  std::string_view name() const override { return "only float"; }
  Capabilities capabilities() const override {
    static constexpr std::array kDtypes{DType::kFloat32};
    return {.device = DeviceType::kCpu, .logits_dtypes = kDtypes, .gradient_dtypes = kDtypes};
  }
  Buffer allocate(std::size_t) const override {
    return {nullptr, [](void*) {}};
  }
  void partials(const Batch&, const Options&, RowRange, const Partials&, Queue) override {}
  void merge(const Partials&, const Partials&, Queue) override {}
  void finalize(const Partials&, const Options&, const RowResults&, Queue) override {}
  void reduce(const RowResults&, std::int64_t, LossSum&, Queue) override {}
  void gradient(const Batch&, const Options&, const GradientTask&, Queue) override {}
};

TEST_F(Checks, GradientDtype) {
  std::vector<BFloat16> narrow(24);
  OnlyFloat only_float;
  const std::vector<Matrix> gradients = gradient_matrices(problem.batch(), narrow);
  EXPECT_EQ(refusal([&] { check_gradients(problem.batch(), gradients, only_float); }),
            "gradient of shard 0: backend 'only float' does not write bf16");
}

TEST_F(Checks, GradientsThatOverlapEachOther) {
  std::vector<Matrix> gradients = fresh_gradients();
  gradients[1] = gradients[0];
  EXPECT_EQ(gradient_refusal(gradients), "gradient of shard 1: its memory overlaps the gradient of shard 0");
  // Slices of one buffer interleave without sharing a byte; one column too far, and they share one.
  gradients = fresh_gradients();
  gradients[1].data = static_cast<float*>(gradients[1].data) - 1;
  EXPECT_EQ(gradient_refusal(gradients), "gradient of shard 1: its memory overlaps the gradient of shard 0");
}

TEST_F(Checks, InPlaceIsTheSameDataStrideAndType) {
  const std::vector<Matrix> own = gradient_matrices(problem.batch(), problem.logits());
  EXPECT_TRUE(in_place(own));
  EXPECT_FALSE(in_place(fresh_gradients()));
  std::vector<Matrix> one = fresh_gradients();
  one[2] = own[2];  // one shard in place is in place
  EXPECT_TRUE(in_place(one));
}

TEST_F(Checks, AnyOtherOverlapWithLogits) {
  const std::string ending = "; in place needs the same data, row_stride and dtype as the shard's own logits";
  const std::vector<Matrix> own = gradient_matrices(problem.batch(), problem.logits());
  std::vector<Matrix> gradients = own;
  gradients[0].data = static_cast<float*>(gradients[0].data) + 8;  // a row further
  EXPECT_EQ(gradient_refusal(gradients), "gradient of shard 0: its memory overlaps the logits of shard 0" + ending);
  gradients = own;
  std::swap(gradients[0], gradients[1]);  // another shard's logits
  EXPECT_EQ(gradient_refusal(gradients), "gradient of shard 0: its memory overlaps the logits of shard 1" + ending);
  gradients = fresh_gradients();
  gradients[1].data = problem.logits().data();
  gradients[1].row_stride = 9;  // another stride
  EXPECT_EQ(gradient_refusal(gradients), "gradient of shard 1: its memory overlaps the logits of shard 0" + ending);
  gradients = fresh_gradients();
  gradients[0] = Matrix{problem.logits().data(), DType::kBFloat16, 3, 3, 8, {}};  // another type
  EXPECT_EQ(gradient_refusal(gradients), "gradient of shard 0: its memory overlaps the logits of shard 0" + ending);
}

// There may be 2^17 shards and more, of which comparing each with each takes minutes.
TEST_F(Checks, ManyShardsAreNotComparedInPairs) {
  constexpr std::int64_t kShards = 1 << 10;
  Problem<float> many(std::vector<float>(2 * kShards), {0, 1}, ShardPlan::even(kShards, kShards));
  std::vector<float> gradient(2 * kShards);
  const std::vector<Matrix> apart = gradient_matrices(many.batch(), gradient);
  const std::vector<Matrix> own = gradient_matrices(many.batch(), many.logits());
  std::vector<std::vector<float>> buffers(kShards, std::vector<float>(2));
  std::vector<Matrix> scattered;
  for (std::vector<float>& buffer : buffers) scattered.push_back(matrix_of(buffer.data(), 2, 1));
  for (const std::vector<Matrix>& gradients : {apart, own, scattered}) {
    EXPECT_EQ(check_gradients(many.batch(), gradients, backend).pairs_compared, 0);
  }
  // Slices that interleave, the last a row further down than the others: each with the two others and three logits.
  std::vector<Matrix> shifted = fresh_gradients();
  shifted[2].data = static_cast<float*>(shifted[2].data) + 8;
  EXPECT_EQ(check_gradients(problem.batch(), shifted, backend).pairs_compared, 3 + 3 * 3);
}

TEST_F(Checks, TheLastSliceMayNotReachIntoTheNextRow) {
  std::vector<Matrix> gradients = fresh_gradients();
  gradients[2].data = static_cast<float*>(gradients[2].data) + 1;  // columns 7 and 8 of 8
  EXPECT_EQ(gradient_refusal(gradients), "gradient of shard 2: its memory overlaps the gradient of shard 0");
  gradients = fresh_gradients();
  for (Matrix& gradient : gradients) gradient.row_stride = 9;
  gradients[2].data = static_cast<float*>(gradients[2].data) + 1;
  EXPECT_EQ(gradient_refusal(gradients), "accepted");
}

TEST_F(Checks, EmptyShardsOverlapNothing) {
  problem.set_plan(ShardPlan::from_widths(8, std::vector<std::int64_t>{0, 8, 0}));
  std::vector<Matrix> gradients = fresh_gradients();
  gradients[0].data = gradients[2].data = problem.logits().data();
  EXPECT_EQ(gradient_refusal(gradients), "accepted");
  EXPECT_FALSE(in_place(gradients));
}

}  // namespace
}  // namespace tpce
