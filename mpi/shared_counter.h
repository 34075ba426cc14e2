// A counter that the ranks of a run share: each value goes to one rank, whichever asks first.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <cstdint>

namespace tpce::mpi {

class SharedCounter {
 public:
  // Begins at 0. Collective over comm, as is destruction. Throws std::runtime_error where MPI fails.
  explicit SharedCounter(MPI_Comm comm = MPI_COMM_WORLD);
  ~SharedCounter();
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;

  // 0, 1, 2, ... over all ranks' calls; no other rank need be in a call of MPI. Throws likewise.
  std::int64_t next();

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  std::int64_t* value_ = nullptr;  // on rank 0
};

}  // namespace tpce::mpi
