// Runs as ranks: mpirun -n 1..5. Every rank makes the same random problems, computes them alone with the scalar
// backend, and then with the others; the bits must be the same.
#include "mpi/mpi_communicator.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "mpi/environment.h"
#include "simd/simd_backend.h"
#include "tests/support/problem.h"

namespace tpce::mpi {
namespace {

using testing::gradient_matrices;
using testing::Outcome;
using testing::Problem;
using testing::refusal;
using testing::same_bits;

std::int64_t below(std::mt19937_64& random, std::int64_t n) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
}

// Any class of row: usual, masked, not finite, far from 0, huge.
std::unique_ptr<Problem<float>> random_problem(std::mt19937_64& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::int64_t rows = 1 + below(random, 12);
  const std::int64_t columns = 1 + below(random, 90);
  std::vector<float> logits =
      testing::normal_logits(random, static_cast<std::size_t>(rows * columns), below(random, 2) == 0 ? 3 : 40);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t kind = below(random, 8);
    for (std::int64_t j = 0; j < columns; ++j) {
      float& z = logits[static_cast<std::size_t>(i * columns + j)];
      if (kind == 0 && below(random, 3) == 0) z = -kInfinity;
      if (kind == 1 && below(random, 40) == 0) z = below(random, 2) == 0 ? kInfinity : NAN;
      if (kind == 2) z += 70000;
      if (kind == 3) z = below(random, 2) == 0 ? 3e9f : -3e9f;
    }
    labels.push_back(below(random, 6) == 0 ? -100 : below(random, columns));
  }
  const std::int64_t tp = 1 + below(random, 9);
  std::vector<std::int64_t> widths(static_cast<std::size_t>(tp), 0);  // any, empty ones too
  for (std::int64_t j = 0; j < columns; ++j) widths[static_cast<std::size_t>(below(random, tp))] += 1;
  return std::make_unique<Problem<float>>(
      std::move(logits), std::move(labels),
      below(random, 2) == 0 ? ShardPlan::even(columns, tp) : ShardPlan::from_widths(columns, widths));
}

// Which rank holds a shard.
using Owner = std::function<std::int64_t(std::int64_t shard)>;

std::vector<Shard> shards_of(const Batch& batch, const Owner& owner, std::int64_t rank) {
  std::vector<Shard> own;
  for (const Shard& shard : batch.shards) {
    if (owner(shard.index) == rank) own.push_back(shard);
  }
  return own;
}

// The problem over the ranks: elements of the gradient that this rank does not hold are those of `expected`.
Outcome run_over_ranks(const Batch& all, const Outcome& expected, std::span<const Shard> own, const Runtime& runtime) {
  const Batch batch{all.plan, own, all.labels, all.vocab};
  const auto rows = static_cast<std::size_t>(all.rows());
  Outcome result;
  result.nll.assign(rows, -1.0f);
  result.lse.assign(rows, -1.0f);
  result.nll_fp64.assign(rows, -1.0);
  result.lse_fp64.assign(rows, -1.0);
  result.gradient = expected.gradient;
  const std::vector<Matrix> gradients = gradient_matrices(batch, result.gradient);
  for (const Matrix& gradient : gradients) {
    for (std::int64_t i = 0; i < gradient.rows; ++i) {
      std::fill_n(gradient.row<float>(i), gradient.cols, -1.0f);
    }
  }
  Forward forward = cross_entropy_forward(
      batch, {}, {result.nll.data(), result.lse.data(), result.nll_fp64.data(), result.lse_fp64.data()}, runtime);
  result.loss = forward.loss;
  cross_entropy_backward(forward.saved, {}, gradients, runtime, &result.squares);

  std::vector<float> gradient = result.gradient;
  BinnedSum squares;
  const Loss loss = cross_entropy_forward_backward(
      batch, {}, {.gradients = gradient_matrices(batch, gradient), .squares = &squares}, runtime);
  EXPECT_EQ(bit_cast<std::uint64_t>(loss.value_fp64), bit_cast<std::uint64_t>(result.loss.value_fp64));
  EXPECT_TRUE(same_bits(std::span<const float>(gradient), std::span<const float>(result.gradient)));
  EXPECT_TRUE(squares == result.squares);
  return result;
}

std::vector<std::pair<std::string, Owner>> owners(std::int64_t tp, std::int64_t ranks) {
  return {{"contiguous", [=](std::int64_t s) { return s * ranks / tp; }},
          {"in turn", [=](std::int64_t s) { return s % ranks; }},
          {"backwards", [=](std::int64_t s) { return ranks - 1 - s % ranks; }},
          {"all on the last rank", [=](std::int64_t) { return ranks - 1; }}};
}

void expect_same_bits_over_ranks(MpiCommunicator& communicator, std::uint64_t seed, int problems) {
  std::mt19937_64 random(seed);
  ScalarBackend scalar;
  simd::SimdBackend simd({.target = "", .threads = 1});
  for (int p = 0; p < problems; ++p) {
    const auto problem = random_problem(random);
    const Batch batch = problem->batch();
    const Outcome expected = testing::run(batch);
    const std::int64_t rows_per_chunk = std::vector<std::int64_t>{1, 2, 3, 1024}[static_cast<std::size_t>(p % 4)];
    for (const auto& [name, owner] : owners(batch.plan.tp(), communicator.size())) {
      // Ranks of different backends, too.
      Backend& backend = (communicator.rank() + p) % 2 == 0 ? static_cast<Backend&>(scalar) : simd;
      const Outcome found = run_over_ranks(batch, expected, shards_of(batch, owner, communicator.rank()),
                                           {backend, communicator, rows_per_chunk});
      EXPECT_TRUE(same_bits(expected, found)) << "problem " << p << " of seed " << seed << ", tp " << batch.plan.tp()
                                              << ", shards " << name << ", rows_per_chunk " << rows_per_chunk;
    }
  }
}

TEST(MpiCommunicator, KnowsTheRanksOfTheLauncher) {
  const MpiCommunicator world;
  const auto launched = launched_rank();
  ASSERT_TRUE(launched);
  EXPECT_EQ(world.size(), launched->size);
  EXPECT_EQ(world.rank(), launched->rank);
  EXPECT_EQ(world.name(), "mpi");
  EXPECT_TRUE(world.accepts(DeviceType::kCpu));
  EXPECT_FALSE(world.accepts(DeviceType::kCuda));
}

TEST(MpiCommunicator, GivesTheBitsOfOneProcess) {
  MpiCommunicator world;
  expect_same_bits_over_ranks(world, 1, 60);
}

// As where a chunk has more rows than an MPI call takes.
TEST(MpiCommunicator, SplitsChunksThatAreTooLongForACall) {
  for (const std::int64_t rows_per_call : {1, 2, 5}) {
    MpiCommunicator world(MPI_COMM_WORLD, rows_per_call);
    expect_same_bits_over_ranks(world, 100 + static_cast<std::uint64_t>(rows_per_call), 12);
  }
  EXPECT_EQ(refusal([] { MpiCommunicator(MPI_COMM_WORLD, 0); }), "rows_per_call: got 0, expected 1..29826161");
}

// Groups of two at a time, and the ranks of equal place in them: each computes problems of its own.
TEST(MpiCommunicator, SplitsIntoGroups) {
  const MpiCommunicator world;
  const auto rank = static_cast<int>(world.rank());
  const auto pairs = world.split(rank / 2);
  EXPECT_EQ(pairs->size(), std::min<std::int64_t>(2, world.size() - rank / 2 * 2));
  EXPECT_EQ(pairs->rank(), rank % 2);
  expect_same_bits_over_ranks(*pairs, 200 + static_cast<std::uint64_t>(rank / 2), 8);
  const auto across = world.split(rank % 2);
  EXPECT_EQ(across->rank(), rank / 2);
  expect_same_bits_over_ranks(*across, 300 + static_cast<std::uint64_t>(rank % 2), 8);
  const auto alone = world.split(rank);
  EXPECT_EQ(alone->size(), 1);
  expect_same_bits_over_ranks(*alone, 400 + static_cast<std::uint64_t>(rank), 4);
  EXPECT_EQ(refusal([&] { world.split(-1); }), "color: got -1, expected at least 0");
}

// A communicator that the caller made and keeps.
TEST(MpiCommunicator, LeavesTheCallersCommunicator) {
  MPI_Comm reversed = MPI_COMM_NULL;
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
  {
    MpiCommunicator group(reversed);
    EXPECT_EQ(group.rank(), size - 1 - rank);
    expect_same_bits_over_ranks(group, 500, 4);
  }
  int rank_after = -1;
  MPI_Comm_rank(reversed, &rank_after);
  EXPECT_EQ(rank_after, size - 1 - rank);
  MPI_Comm_free(&reversed);
}

// Row i of chunk c on rank r; every rank holds another maximum, and one rank of each row the target.
RowPartial row_of(std::int64_t chunk, std::int64_t i, std::int64_t rank, std::int64_t ranks) {
  const float logits[] = {static_cast<float>(20 * rank + i), static_cast<float>(chunk), -1.5f};
  return row_partial(logits, 3, (chunk + i) % ranks == rank ? 1 : -1);
}

TEST(MpiCommunicator, KeepsSeveralChunksInFlight) {
  MpiCommunicator world(MPI_COMM_WORLD, 2);
  ScalarBackend backend;
  for (const bool backwards : {false, true}) {
    constexpr std::int64_t kChunks = 6;
    std::vector<std::vector<std::int64_t>> memory;
    std::vector<Partials> chunks;
    std::vector<Communicator::Pending> pending;
    for (std::int64_t c = 0; c < kChunks; ++c) {  // chunk c has c rows
      memory.emplace_back(static_cast<std::size_t>(c) * Partials::bytes_per_row({}) / sizeof(std::int64_t) + 1);
      chunks.push_back(Partials::in(memory.back().data(), c, {}));
      for (std::int64_t i = 0; i < c; ++i) chunks.back().store(i, row_of(c, i, world.rank(), world.size()));
      pending.push_back(world.start_all_reduce(chunks.back(), backend, {}));
    }
    for (std::int64_t k = 0; k < kChunks; ++k) {
      const auto c = static_cast<std::size_t>(backwards ? kChunks - 1 - k : k);
      world.finish(pending[c], {});
    }
    for (std::int64_t c = 0; c < kChunks; ++c) {
      for (std::int64_t i = 0; i < c; ++i) {
        RowPartial expected = row_of(c, i, 0, world.size());
        for (std::int64_t r = 1; r < world.size(); ++r) merge(expected, row_of(c, i, r, world.size()));
        EXPECT_TRUE(chunks[static_cast<std::size_t>(c)].load(i) == expected) << "chunk " << c << " row " << i;
      }
    }
  }
}

TEST(MpiCommunicator, MergesSums) {
  MpiCommunicator world;
  std::mt19937_64 random(7);
  BinnedSum expected;
  BinnedSum mine;
  for (int i = 0; i < 1000; ++i) {
    const auto y = static_cast<float>((testing::uniform(random) - 0.5) * 1e6);
    add(expected, y);
    if (below(random, world.size()) == world.rank()) add(mine, y);
  }
  world.all_reduce(mine);
  EXPECT_TRUE(mine == expected);
  BinnedSum empty;
  world.all_reduce(empty);
  EXPECT_TRUE(empty == BinnedSum{});
  BinnedSum one;
  if (world.rank() == world.size() - 1) add(one, std::numeric_limits<float>::infinity());
  world.all_reduce(one);
  EXPECT_EQ(one.flags, BinnedSum::kPositiveInfinity);
}

TEST(MpiCommunicator, GathersTextsOfAnyLength) {
  MpiCommunicator world;
  const auto text_of = [](std::int64_t rank) {
    return std::string(static_cast<std::size_t>(rank * rank * 5000), static_cast<char>('a' + rank));
  };
  const std::vector<std::string> texts = world.all_gather(text_of(world.rank()));
  EXPECT_EQ(static_cast<std::int64_t>(texts.size()), world.size());
  for (std::size_t r = 0; r < texts.size(); ++r) EXPECT_EQ(texts[r], text_of(static_cast<std::int64_t>(r)));
}

// Every rank throws the same, none is ended, and the communicator serves on.
TEST(MpiCommunicator, SurvivesWhatAllRanksRefuse) {
  MpiCommunicator world;
  ScalarBackend backend;
  const std::int64_t last = world.size() - 1;
  const auto refusal_of = [&](bool bad_label, const Owner& owner) {
    Problem<float> problem(std::vector<float>(40, 0.5f), {1, 2, 3, 4}, ShardPlan::even(10, 5));
    if (bad_label) problem.labels()[2] = 10;
    const Batch all = problem.batch();
    const std::vector<Shard> own = shards_of(all, owner, world.rank());
    return refusal([&] { cross_entropy_forward({all.plan, own, all.labels, 10}, {}, {}, {backend, world, 2}); });
  };
  const Owner first = [](std::int64_t) { return 0; };
  const std::string label = "labels: row 2 has label 10, expected 0..9 or ignore_index -100";
  const std::string rank = "rank " + std::to_string(last) + " of " + std::to_string(world.size()) + ": ";
  EXPECT_EQ(refusal_of(true, first), label);
  EXPECT_EQ(refusal_of(world.rank() == last, first), world.size() == 1 ? label : rank + label);
  if (world.size() > 1) {
    const Owner nobody = [](std::int64_t shard) { return shard == 3 ? -1 : 0; };
    EXPECT_EQ(refusal_of(false, nobody),
              "shards: shard 3 of 5 is held by none of the " + std::to_string(world.size()) + " ranks");
    const Owner both = [&](std::int64_t shard) { return shard == 3 ? world.rank() : 0; };
    EXPECT_EQ(refusal_of(false, both), "shards: shard 3 of 5 is held by rank 0 and by rank 1, expected one rank");
  }
  EXPECT_EQ(refusal_of(false, first), "accepted");
}

// Rank 0 reports everything, the others what failed.
class FailuresOnly final : public ::testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(std::int64_t rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", static_cast<int>(rank_), result.file_name(), result.line_number(),
                 result.message());
  }

 private:
  std::int64_t rank_;
};

}  // namespace
}  // namespace tpce::mpi

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const tpce::mpi::Environment environment;
  const auto launched = tpce::mpi::launched_rank().value_or(tpce::mpi::LaunchedRank{});
  if (launched.rank != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new tpce::mpi::FailuresOnly(launched.rank));
  }
  return RUN_ALL_TESTS();
}
