#include "mpi/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace tpce::mpi {
namespace {

// launched_rank() with these variables and no others of a launcher.
std::optional<LaunchedRank> launched_with(const std::map<std::string, std::string>& variables) {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "SLURM_NTASKS"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return launched_rank();
}

TEST(LaunchedRank, IsNoneWithoutALauncher) {
  EXPECT_FALSE(launched_with({}));
  EXPECT_FALSE(launched_with({{"SLURM_NTASKS", "4"}}));  // in an allocation, but not started by srun
  EXPECT_FALSE(launched_with({{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "4"}}));
}

TEST(LaunchedRank, IsWhatTheLauncherSays) {
  for (const auto& [rank, size] : std::map<std::string, std::string>{
           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}, {"PMIX_RANK", "SLURM_NTASKS"}}) {
    const auto launched = launched_with({{rank, "3"}, {size, "5"}});
    ASSERT_TRUE(launched) << rank;
    EXPECT_EQ(launched->rank, 3);
    EXPECT_EQ(launched->size, 5);
  }
}

}  // namespace
}  // namespace tpce::mpi
