#include "tools/ranks.h"

#include "io/atomic_file.h"

#if TPCE_HAS_MPI
#include "mpi/environment.h"
#include "mpi/guard.h"
#include "mpi/mpi_communicator.h"
#else
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "io/error.h"
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

// The one rank of a launcher is alone as it is; more would each do the whole work and write the same files.
RankSession::RankSession() {
  struct Names {
    const char* rank;
    const char* size;
  };
  // As mpi::launched_rank() knows them.
  constexpr std::array kLaunchers{Names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, Names{"PMI_RANK", "PMI_SIZE"},
                                  Names{"PMIX_RANK", "SLURM_NTASKS"}};
  std::string started;
  for (const Names& names : kLaunchers) {
    const char* rank = std::getenv(names.rank);
    const char* size = std::getenv(names.size);
    if (rank == nullptr) continue;
    if (size != nullptr && std::string_view(size) == "1") return;
    started = io::printable(size != nullptr ? fmt::format("{} of {}", rank, size) : rank);
    if (size != nullptr) break;
  }
  if (started.empty()) return;
  throw std::runtime_error("mpi: a launcher started rank " + started +
                           ", and this build (TPCE_MPI=OFF) joins no ranks");
}

std::string mpi_version() { return "missing: built with TPCE_MPI=OFF"; }

#endif

RankSession::~RankSession() = default;

Communicator& ranks() { return *current(); }

bool is_first_rank() { return ranks().rank() == 0; }

}  // namespace tpce::tools
