// The processes of this run: one, or the ranks that mpirun started (docs/mpi.md).
#pragma once

#include <memory>
#include <string>

#include "tpce/communicator.h"

namespace tpce::tools {

// Made first in main, once. Where a launcher started this process: a guard for it, and MPI until destruction, which
// waits for the other ranks. Throws std::runtime_error where the launcher's ranks cannot be joined.
class RankSession {
 public:
  RankSession();
  ~RankSession();
  RankSession(const RankSession&) = delete;
  RankSession& operator=(const RankSession&) = delete;

 private:
  struct World;
  std::unique_ptr<World> world_;
};

// All ranks of the session; this process alone where there are no others.
Communicator& ranks();

// The rank that prints and writes files, where every rank computes.
bool is_first_rank();

// Version of the MPI library, or why there is none.
std::string mpi_version();

}  // namespace tpce::tools
