// A program without MPI under a launcher: alone where it is the only rank, else refused, since each would write the
// same files.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/tools/run_program.h"

namespace tpce::test {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

Output launched(const Variables& variables) {
  const TemporaryDirectory directory;
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  const Output output = run(directory, {"--version"});
  for (const auto& [name, value] : variables) unsetenv(name.c_str());
  return output;
}

std::string refusal(const std::string& rank) {
  return "tpce: error: mpi: a launcher started rank " + rank + ", and this build (TPCE_MPI=OFF) joins no ranks\n";
}

TEST(RanksWithoutMpi, OneRankRunsAlone) {
  for (const Variables& variables :
       {Variables{}, Variables{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}},
        Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}, Variables{{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "1"}}}) {
    const Output output = launched(variables);
    EXPECT_EQ(output.exit_code, 0) << output.err;
  }
}

TEST(RanksWithoutMpi, RanksAreRefused) {
  EXPECT_EQ(launched({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).err, refusal("0 of 2"));
  EXPECT_EQ(launched({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}).err, refusal("3 of 4"));
  EXPECT_EQ(launched({{"PMIX_RANK", "1"}, {"SLURM_NTASKS", "2"}}).err, refusal("1 of 2"));
  EXPECT_EQ(launched({{"PMIX_RANK", "0"}}).err, refusal("0"));  // of who knows how many
  EXPECT_EQ(launched({{"PMIX_RANK", "0"}}).exit_code, 2);
}

}  // namespace
}  // namespace tpce::test
