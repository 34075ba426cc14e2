#include "tools/ranks.h"

#include <cstdlib>
#include <stdexcept>

#include "io/atomic_file.h"

#if TPCE_HAS_MPI
#include "mpi/environment.h"
#include "mpi/guard.h"
#include "mpi/mpi_communicator.h"
#endif

namespace tpce::tools {

namespace {

Communicator*& current() {
  static SelfCommunicator self;
  static Communicator* communicator = &self;
  return communicator;
}

}  // namespace

#if TPCE_HAS_MPI

struct RankSession::World {
  mpi::Environment environment;
  mpi::MpiCommunicator communicator;
};

RankSession::RankSession() {
  const auto launched = mpi::launched_rank();
  if (!launched) return;
  mpi::guard_rank("tpce", *launched, io::remove_temporary_files);
  world_ = std::make_unique<World>();
  world_->communicator.set_before_abort(io::remove_temporary_files);
  current() = &world_->communicator;
}

std::string mpi_version() { return mpi::library_version(); }

#else

struct RankSession::World {};

RankSession::RankSession() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (std::getenv(variable) == nullptr) continue;
    throw std::runtime_error("mpi: a launcher started several ranks, which this build (TPCE_MPI=OFF) cannot join");
  }
}

std::string mpi_version() { return "missing: built with TPCE_MPI=OFF"; }

#endif

RankSession::~RankSession() = default;

Communicator& ranks() { return *current(); }

bool is_first_rank() { return ranks().rank() == 0; }

}  // namespace tpce::tools
