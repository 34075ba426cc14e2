#include "mpi/environment.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace tpce::mpi {

namespace {

std::optional<std::int64_t> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  std::int64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto result = std::from_chars(text, end, value);
  if (result.ec != std::errc{} || result.ptr != end) return std::nullopt;
  return value;
}

}  // namespace

std::optional<LaunchedRank> launched_rank() {
  struct Names {
    const char* rank;
    const char* size;
  };
  // Open MPI's mpirun; MPICH's and others that speak PMI; srun --mpi=pmix, which gives the size in a variable of its
  // own.
  constexpr std::array kLaunchers{Names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, Names{"PMI_RANK", "PMI_SIZE"},
                                  Names{"PMIX_RANK", "SLURM_NTASKS"}};
  for (const Names& names : kLaunchers) {
    const auto rank = number_in(names.rank);
    const auto size = number_in(names.size);
    if (rank && size) return LaunchedRank{*rank, *size};
  }
  return std::nullopt;
}

std::chrono::milliseconds wait_to_tell(std::int64_t rank) {
  // mpirun takes tens of milliseconds to end the ranks, on crowded cores some hundreds.
  constexpr std::chrono::milliseconds kRankZero{1500};
  constexpr std::chrono::milliseconds kEachRank{250};
  if (rank == 0) return {};
  return kRankZero + kEachRank * std::min<std::int64_t>(rank, 10);
}

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data());
  return version.substr(0, version.find(','));
}

Environment::Environment() {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
    throw std::runtime_error("mpi: MPI_Init_thread failed");
  }
  if (provided < MPI_THREAD_FUNNELED) {
    MPI_Finalize();
    throw std::runtime_error("mpi: this MPI does not allow threads beside the one that calls it");
  }
}

Environment::~Environment() { MPI_Finalize(); }

}  // namespace tpce::mpi
