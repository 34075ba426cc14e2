// The host-staged communicator over two ranks in one process, on late devices.
#include "gpu/staged_communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/late_device.h"
#include "tests/support/random_partials.h"
#include "tests/support/two_ranks.h"

namespace tpce::gpu {
namespace {

using testing::LateDevice;
using testing::World;

TEST(StagedCommunicator, GivesTheBitsOfMerge) {
  std::mt19937_64 random(1);
  std::vector<std::vector<std::vector<RowPartial>>> chunks;  // [chunks][rows][ranks]
  for (const int rows : {0, 1, 7, 500, 30}) {
    auto& chunk = chunks.emplace_back();
    for (int i = 0; i < rows; ++i) chunk.push_back(tpce::testing::partials_of_row(random, 2));
  }
  World world;
  std::array<std::vector<std::string>, 2> logs;
  const auto errors = tpce::testing::on_two_ranks(logs, [&](Communicator& host) {
    LateDevice device(world);
    StagedCommunicator staged(host, device);
    const DeviceObject own = device.make_queue();
    const Queue queue{own.get()};
    ScalarBackend unused;
    std::vector<std::vector<std::byte>> sources;
    std::vector<Buffer> memory;
    std::vector<Partials> planes;
    std::vector<Communicator::Pending> pending;
    for (const auto& chunk : chunks) {
      const auto rows = static_cast<std::int64_t>(chunk.size());
      auto& source = sources.emplace_back(chunk.size() * Partials::bytes_per_row({}) + 1);
      const Partials from = Partials::in(source.data(), rows, {});
      for (std::int64_t i = 0; i < rows; ++i) {
        from.store(i, chunk[static_cast<std::size_t>(i)][static_cast<std::size_t>(host.rank())]);
      }
      memory.push_back(device.allocate(source.size()));
      device.copy_to_device(memory.back().get(), source.data(), source.size(), queue);
      planes.push_back(Partials::in(memory.back().get(), rows, {}));
      pending.push_back(staged.start_all_reduce(planes.back(), unused, queue));
    }
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      staged.finish(pending[c], queue);
      std::vector<std::byte> found(sources[c].size());
      device.copy_to_host(found.data(), memory[c].get(), found.size(), queue);
      const Partials merged = Partials::in(found.data(), planes[c].rows, {});
      for (std::size_t i = 0; i < chunks[c].size(); ++i) {
        EXPECT_TRUE(merged.load(static_cast<std::int64_t>(i)) == tpce::testing::merged(chunks[c][i]))
            << "chunk " << c << " row " << i;
      }
    }
    EXPECT_EQ(staged.size(), 2);
    EXPECT_EQ(staged.rank(), host.rank());
    EXPECT_EQ(staged.all_gather(host.rank() == 0 ? "a" : "b"), (std::vector<std::string>{"a", "b"}));
    BinnedSum sum;
    add(sum, 1.5f);
    staged.all_reduce(sum);
    EXPECT_EQ(value_of(sum), 3.0);
  });
  EXPECT_EQ(errors, (std::array<std::string, 2>{}));
}

// A queue is the caller's, who may release it as soon as what it was asked for is done.
TEST(StagedCommunicator, KeepsNoQueue) {
  std::mt19937_64 random(2);
  const std::vector<RowPartial> row = tpce::testing::partials_of_row(random, 2);
  World world;
  std::array<std::vector<std::string>, 2> logs;
  const auto errors = tpce::testing::on_two_ranks(logs, [&](Communicator& host) {
    LateDevice device(world);
    StagedCommunicator staged(host, device);
    ScalarBackend unused;
    for (int round = 0; round < 2; ++round) {
      const DeviceObject own = device.make_queue();
      const Queue queue{own.get()};
      std::vector<std::int64_t> source(Partials::bytes_per_row({}) / sizeof(std::int64_t) + 1);
      const std::size_t bytes = source.size() * sizeof(std::int64_t);
      Partials::in(source.data(), 1, {}).store(0, row[static_cast<std::size_t>(host.rank())]);
      const Buffer memory = device.allocate(bytes);
      device.copy_to_device(memory.get(), source.data(), bytes, queue);
      staged.finish(staged.start_all_reduce(Partials::in(memory.get(), 1, {}), unused, queue), queue);
      device.copy_to_host(source.data(), memory.get(), bytes, queue);
      EXPECT_TRUE(Partials::in(source.data(), 1, {}).load(0) == tpce::testing::merged(row)) << "round " << round;
    }
  });
  EXPECT_EQ(errors, (std::array<std::string, 2>{}));
}

TEST(StagedCommunicator, AbortsTheHost) {
  World world;
  std::array<std::vector<std::string>, 2> logs;
  const auto errors = tpce::testing::on_two_ranks(logs, [&](Communicator& host) {
    LateDevice device(world);
    StagedCommunicator staged(host, device);
    if (host.rank() == 1) {
      staged.abort("no memory");
    } else {
      staged.all_gather("");
    }
  });
  EXPECT_EQ(errors, (std::array<std::string, 2>{"aborted: no memory", ""}));
}

}  // namespace
}  // namespace tpce::gpu
