// The whole loss over ranks, with the gpu backend on late devices, against one process that holds every shard: the same
// bits, whatever merges the ranks; and what every rank hears when the device of one fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu_backend.h"
#include "gpu/staged_communicator.h"
#include "tests/gpu/fake_ranks.h"
#include "tests/support/problem.h"
#include "tests/support/two_ranks.h"
#include "tpce/cross_entropy.h"

namespace tpce::gpu {
namespace {

using testing::FakeRank;
using testing::FakeRanks;
using testing::LateDevice;
using tpce::testing::Outcome;
using tpce::testing::Problem;

std::unique_ptr<Problem<float>> random_problem(std::mt19937_64& random) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const std::int64_t rows = 1 + below(12);
  const std::int64_t columns = 8 + below(60);
  const double deviation = std::vector<double>{0.5, 5.0, 60.0}[static_cast<std::size_t>(below(3))];
  std::vector<float> logits = tpce::testing::normal_logits(random, static_cast<std::size_t>(rows * columns), deviation);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back(below(5) == 0 ? -100 : below(columns));
  const auto row_with = [&](float value) {
    const std::int64_t row = below(rows);
    for (int k = 0; k < 2; ++k) logits[static_cast<std::size_t>(row * columns + below(columns))] = value;
  };
  if (below(3) == 0) row_with(std::numeric_limits<float>::quiet_NaN());
  if (below(3) == 0) row_with(3e9f);
  if (below(3) == 0) row_with(-std::numeric_limits<float>::infinity());
  return std::make_unique<Problem<float>>(std::move(logits), std::move(labels), ShardPlan::even(columns, 1 + below(6)));
}

// Of this rank's shards: every shard belongs to one rank, some ranks may have none.
std::vector<Shard> shards_of_rank(const Batch& batch, std::int64_t rank, std::int64_t ranks) {
  std::vector<Shard> own;
  for (const Shard& shard : batch.shards) {
    if (shard.index % ranks == rank) own.push_back(shard);
  }
  return own;
}

// What differs from `expected`, which one process computed.
std::string difference_over_ranks(const Batch& all, const Outcome& expected, const Runtime& runtime) {
  const std::vector<Shard> own = shards_of_rank(all, runtime.communicator.rank(), runtime.communicator.size());
  const Batch batch{all.plan, own, all.labels, all.vocab};
  Outcome found = expected;
  std::fill(found.nll.begin(), found.nll.end(), -1.0f);
  std::fill(found.lse_fp64.begin(), found.lse_fp64.end(), -1.0);
  found.squares = {};
  // Other ranks' columns stay as expected.
  for (const Matrix& matrix : tpce::testing::gradient_matrices(batch, found.gradient)) {
    for (std::int64_t i = 0; i < matrix.rows; ++i) {
      std::fill_n(matrix.row<float>(i), matrix.cols, -1.0f);
    }
  }
  Forward forward = cross_entropy_forward(
      batch, {}, {found.nll.data(), found.lse.data(), found.nll_fp64.data(), found.lse_fp64.data()}, runtime);
  found.loss = forward.loss;
  cross_entropy_backward(forward.saved, {}, tpce::testing::gradient_matrices(batch, found.gradient), runtime,
                         &found.squares);
  // Row results and gradients are there when the queue is done.
  std::byte nothing;
  runtime.backend.copy_out(&nothing, &nothing, 0, runtime.queue);
  return tpce::testing::same_bits(expected, found) ? "" : "other bits";
}

TEST(DriverOverRanks, NcclGivesTheBitsOfOneProcess) {
  std::mt19937_64 random(1);
  for (int p = 0; p < 20; ++p) {  // every number of ranks with every chunk
    const auto problem = random_problem(random);
    const Batch batch = problem->batch();
    const Outcome expected = tpce::testing::run(batch);
    const std::int64_t ranks = std::vector<std::int64_t>{1, 2, 3, 4, 8}[static_cast<std::size_t>(p % 5)];
    for (const auto merge : {NcclOptions::Merge::kGather, NcclOptions::Merge::kTwoSteps}) {
      FakeRanks group(ranks, {.merge = merge});
      std::vector<std::string> found(static_cast<std::size_t>(ranks));
      const auto errors = group.run([&](const FakeRank& rank) {
        GpuBackend backend(std::make_unique<LateDevice>(group.world));
        const DeviceObject own = rank.device.make_queue();
        found[static_cast<std::size_t>(rank.communicator.rank())] =
            difference_over_ranks(batch, expected, {backend, rank.communicator, 1 + p % 4, {own.get()}});
      });
      EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(ranks))) << "problem " << p;
      EXPECT_EQ(found, std::vector<std::string>(static_cast<std::size_t>(ranks))) << "problem " << p;
    }
  }
}

TEST(DriverOverRanks, StagedGivesTheBitsOfOneProcess) {
  std::mt19937_64 random(2);
  for (int p = 0; p < 20; ++p) {
    const auto problem = random_problem(random);
    const Batch batch = problem->batch();
    const Outcome expected = tpce::testing::run(batch);
    testing::World world;
    std::array<std::vector<std::string>, 2> logs;
    std::array<std::string, 2> found;
    const auto errors = tpce::testing::on_two_ranks(logs, [&](Communicator& host) {
      GpuBackend backend(std::make_unique<LateDevice>(world));
      StagedCommunicator staged(host, backend.device());
      const DeviceObject own = backend.device().make_queue();
      found[static_cast<std::size_t>(host.rank())] =
          difference_over_ranks(batch, expected, {backend, staged, 1 + p % 4, {own.get()}});
    });
    EXPECT_EQ(errors, (std::array<std::string, 2>{})) << "problem " << p;
    EXPECT_EQ(found, (std::array<std::string, 2>{})) << "problem " << p;
  }
}

// Rank `failing` fails at its launch of that number.
std::vector<std::string> errors_over_3_ranks(FakeRanks& group, const Batch& all, std::int64_t failing, int launch) {
  return group.run([&](const FakeRank& rank) {
    auto device = std::make_unique<LateDevice>(group.world);
    if (rank.communicator.rank() == failing) device->fail_at(launch);
    const DeviceObject own = device->make_queue();
    GpuBackend backend(std::move(device));
    const std::vector<Shard> shards = shards_of_rank(all, rank.communicator.rank(), 3);
    cross_entropy_forward({all.plan, shards, all.labels, all.vocab}, {}, {},
                          {backend, rank.communicator, 2, {own.get()}});
  });
}

TEST(DriverOverRanks, EveryRankHearsWhyOneFails) {
  Problem<float> problem(std::vector<float>(12 * 10, 0.5f), std::vector<std::int64_t>(12, 3), ShardPlan::even(10, 3));
  const std::string told = "rank 1 of 3: the launch failed";
  for (const int launch : {0, 1, 2, 5, 10}) {
    FakeRanks group(3);
    EXPECT_EQ(errors_over_3_ranks(group, problem.batch(), 1, launch),
              (std::vector<std::string>{told, "the launch failed", told}))
        << launch;
  }
}

// The last collective never ends: no call of the communicator follows but confirm().
TEST(DriverOverRanks, NoResultComesOfACollectiveThatFailed) {
  Problem<float> problem(std::vector<float>(10, 0.5f), {3}, ShardPlan::even(10, 3));
  FakeRanks group(3);
  // Each rank's calls are two for the checks among ranks, then six for the chunk.
  group.nccl.fail({testing::Failure::Kind::kLater, 2, 4});
  EXPECT_EQ(errors_over_3_ranks(group, problem.batch(), -1, 0),
            std::vector<std::string>(3, "rank 2 of 3: unhandled system error"));
}

}  // namespace
}  // namespace tpce::gpu
