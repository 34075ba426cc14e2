// Memory is what runs out most often: the other ranks must hear of it all the same.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/failure_board.h"
#include "tests/gpu/fake_ranks.h"
#include "tests/support/memory_is_out.h"

namespace tpce::gpu {
namespace {

using tpce::testing::MemoryIsOut;

TEST(OutOfMemory, APostNeedsNone) {
  FailureBoard board(4);
  const std::string reason(2 * FailureBoard::kLongest, 'x');
  {
    const MemoryIsOut out;
    board.post(3, reason);
  }
  EXPECT_EQ(board.first(), ("rank 3 of 4: " + reason).substr(0, FailureBoard::kLongest));
}

TEST(OutOfMemory, AnAbortNeedsNone) {
  testing::FakeRanks group(3);
  const std::string told = "rank 1 of 3: no memory for the gradients";
  const auto errors = group.run([](const testing::FakeRank& rank) {
    if (rank.communicator.rank() == 1) {
      const MemoryIsOut out;
      rank.communicator.abort("no memory for the gradients");
      return;
    }
    rank.communicator.all_gather("waits for rank 1");
  });
  EXPECT_EQ(errors, (std::vector<std::string>{told, "", told}));
}

}  // namespace
}  // namespace tpce::gpu
