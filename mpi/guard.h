// A rank that is killed cannot say so itself. Its guard can: a second process, its parent, that only waits.
#pragma once

#include "mpi/environment.h"

namespace tpce::mpi {

// Forks. Returns in the child, which goes on as the rank; the parent waits for it and exits as it does. Where a signal
// ends the child, other than one that was sent to end the run, the parent prints
//   <program>: error: rank 2 of 4: killed by signal 9 (Killed), as where memory runs out
// after wait_to_tell(), and exits with 128 + the signal, upon which the launcher ends the other ranks. Where the parent
// is killed, the child calls cleanup(), which must be async-signal-safe, and exits; the launcher tells of that, which
// is what it started. What is sent to the parent to end the run goes to the child, which has a process group of its own
// and so all the time that it needs to end. Called at the start of main: before any thread, before MPI, with nothing in
// the buffers of stdout. Throws std::runtime_error where it cannot fork.
void guard_rank(const char* program, const LaunchedRank& rank, void (*cleanup)() noexcept);

}  // namespace tpce::mpi
