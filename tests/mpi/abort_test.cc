// MpiCommunicator::abort(): a rank that cannot go on ends the run on all of them, and says why once.
#include <gtest/gtest.h>

#include "tests/mpi/launch.h"

namespace tpce {
namespace {

using testing::launch_failing;
using testing::Launched;
using Lines = std::vector<std::string>;

TEST(Abort, IsNotCalledWhereNothingFails) {
  const Launched run = launch_failing(4, "nothing -1");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "loss 3.46573591\n");  // log 32
}

TEST(Abort, NamesTheRankAndTheCause) {
  for (const int rank : {0, 3}) {
    const Launched run = launch_failing(4, "out_of_memory " + std::to_string(rank));
    EXPECT_EQ(run.messages, Lines{"tpce: error: rank " + std::to_string(rank) + " of 4: std::bad_alloc"}) << run.err;
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_NE(run.err.find("cleaned up\n"), std::string::npos);
    EXPECT_LT(run.seconds, 10);
  }
}

TEST(Abort, TellsOfACauseOfAllRanksOnce) {
  const Launched run = launch_failing(5, "out_of_memory -1");
  EXPECT_EQ(run.messages, Lines{"tpce: error: rank 0 of 5: std::bad_alloc"}) << run.err;
  EXPECT_NE(run.exit_code, 0);
  EXPECT_LT(run.seconds, 10);
}

}  // namespace
}  // namespace tpce
