#include "mpi/guard.h"

#include <gtest/gtest.h>

#include "tests/mpi/launch.h"

namespace tpce {
namespace {

using testing::launch_failing;
using testing::Launched;
using Lines = std::vector<std::string>;

TEST(Guard, TellsOfARankThatIsKilled) {
  for (const int rank : {0, 2}) {
    const Launched run = launch_failing(3, "killed " + std::to_string(rank));
    EXPECT_EQ(run.messages, Lines{"tpce: error: rank " + std::to_string(rank) +
                                  " of 3: killed by signal 9 (Killed), as where memory runs out"})
        << run.err;
    EXPECT_EQ(run.exit_code, 137);
    EXPECT_LT(run.seconds, 10);
  }
}

TEST(Guard, TellsOfACauseOfAllRanksOnce) {
  const Launched run = launch_failing(3, "killed -1");
  EXPECT_EQ(run.messages, Lines{"tpce: error: rank 0 of 3: killed by signal 9 (Killed), as where memory runs out"})
      << run.err;
  EXPECT_LT(run.seconds, 10);
}

TEST(Guard, TellsOfARankThatCrashes) {
  const Launched run = launch_failing(3, "crash 1");
  EXPECT_EQ(run.messages, Lines{"tpce: error: rank 1 of 3: killed by signal 11 (Segmentation fault)"}) << run.err;
  EXPECT_EQ(run.exit_code, 139);
  EXPECT_LT(run.seconds, 10);
}

TEST(Guard, IsItselfMissedByItsRank) {
  const Launched run = launch_failing(3, "guard_killed 1");
  EXPECT_EQ(run.messages, Lines{}) << run.err;
  EXPECT_NE(run.err.find("process rank 1 with PID"), std::string::npos) << run.err;  // mpirun's
  EXPECT_NE(run.err.find("exited on signal 9"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("cleaned up\n"), std::string::npos);
  EXPECT_EQ(run.exit_code, 137);
  EXPECT_LT(run.seconds, 10);
}

TEST(Guard, PassesTheExitCodeOn) {
  const Launched run = launch_failing(2, "exit 1");
  EXPECT_EQ(run.messages, Lines{}) << run.err;
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_LT(run.seconds, 10);
}

TEST(Guard, SaysNothingWhereTheUserEndsTheRun) {
  const Launched run = launch_failing(3, "hang 1", "timeout --signal TERM 2");
  EXPECT_EQ(run.messages, Lines{}) << run.err;
  EXPECT_NE(run.exit_code, 0);
  EXPECT_LT(run.seconds, 10);
}

}  // namespace
}  // namespace tpce
