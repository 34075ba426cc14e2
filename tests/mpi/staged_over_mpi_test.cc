// Several ranks, each a process, whose partials lie in the memory of a device that the host plays: merged over MPI.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <vector>

#include "gpu/host_device.h"
#include "gpu/staged_communicator.h"
#include "mpi/environment.h"
#include "mpi/mpi_communicator.h"
#include "tests/support/random_partials.h"

namespace tpce::gpu {
namespace {

TEST(StagedOverMpi, GivesTheBitsOfMerge) {
  mpi::MpiCommunicator world(MPI_COMM_WORLD, 100);
  HostDevice device;
  StagedCommunicator staged(world, device);
  ScalarBackend unused;
  std::mt19937_64 random(1);  // alike on every rank
  for (const std::int64_t rows : {0, 1, 7, 1024}) {
    std::vector<std::vector<RowPartial>> all;
    for (std::int64_t i = 0; i < rows; ++i) all.push_back(tpce::testing::partials_of_row(random, world.size()));
    const Buffer memory = device.allocate(static_cast<std::size_t>(rows) * Partials::bytes_per_row({}) + 1);
    const Partials partials = Partials::in(memory.get(), rows, {});
    for (std::int64_t i = 0; i < rows; ++i) {
      partials.store(i, all[static_cast<std::size_t>(i)][static_cast<std::size_t>(world.rank())]);
    }
    staged.finish(staged.start_all_reduce(partials, unused, {}), {});
    for (std::int64_t i = 0; i < rows; ++i) {
      EXPECT_TRUE(partials.load(i) == tpce::testing::merged(all[static_cast<std::size_t>(i)])) << "row " << i;
    }
  }
}

}  // namespace
}  // namespace tpce::gpu

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const tpce::mpi::Environment environment;
  return RUN_ALL_TESTS();
}
