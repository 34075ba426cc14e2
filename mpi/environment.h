// Where this process stands among the ranks that a launcher started, and MPI's own start and end.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace tpce::mpi {

// Rank and number of ranks, as the launcher (mpirun, srun) says in the environment, before MPI is started.
struct LaunchedRank {
  std::int64_t rank = 0;
  std::int64_t size = 1;
};

// Nothing where no launcher started this process. MPI must not be started then: it would start a daemon of its own.
std::optional<LaunchedRank> launched_rank();

// How long a failing rank waits before it tells why and ends the run. Lower ranks go first and end the others
// meanwhile, so that a cause that strikes all of them is told once. At most 4 s.
std::chrono::milliseconds wait_to_tell(std::int64_t rank);

// Name and version of the MPI library, as in "Open MPI v4.1.4".
std::string library_version();

// MPI from construction to destruction, once a process; MPI is called from the constructing thread alone
// (MPI_THREAD_FUNNELED). Every communicator ends before it. Where a rank fails, Communicator::abort() ends the run:
// destruction waits for all ranks.
class Environment {
 public:
  // Throws std::runtime_error where MPI does not start.
  Environment();
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
};

}  // namespace tpce::mpi
