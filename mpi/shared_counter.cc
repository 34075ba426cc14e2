#include "mpi/shared_counter.h"

#include <stdexcept>
#include <string>

namespace tpce::mpi {
namespace {

void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw std::runtime_error(std::string("mpi: ") + call + ": " + std::string(text, static_cast<std::size_t>(length)));
}

}  // namespace

SharedCounter::SharedCounter(MPI_Comm comm) {
  int rank = 0;
  check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  const MPI_Aint bytes = rank == 0 ? sizeof(std::int64_t) : 0;
  check(MPI_Win_allocate(bytes, sizeof(std::int64_t), MPI_INFO_NULL, comm, &value_, &window_), "MPI_Win_allocate");
  check(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");
  if (rank == 0) {
    check(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window_), "MPI_Win_lock");
    *value_ = 0;
    check(MPI_Win_unlock(0, window_), "MPI_Win_unlock");
  }
  check(MPI_Barrier(comm), "MPI_Barrier");
}

SharedCounter::~SharedCounter() { MPI_Win_free(&window_); }

std::int64_t SharedCounter::next() {
  const std::int64_t one = 1;
  std::int64_t value = 0;
  check(MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window_), "MPI_Win_lock");
  check(MPI_Fetch_and_op(&one, &value, MPI_INT64_T, 0, 0, MPI_SUM, window_), "MPI_Fetch_and_op");
  check(MPI_Win_unlock(0, window_), "MPI_Win_unlock");
  return value;
}

}  // namespace tpce::mpi
