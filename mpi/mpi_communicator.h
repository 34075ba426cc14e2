// The communicator over MPI: one non-blocking all_reduce of rows a chunk, by a commutative operation that is merge() of
// tpce/row_partial.h. Host memory only.
//
//   mpi::Environment environment;
//   mpi::MpiCommunicator world;                               // one tensor-parallel group of all ranks
//   const auto tp = world.split(world.rank() / 4);            // or groups of 4, tp inside dp
//   cross_entropy_forward(batch, {}, {}, {backend, *tp});
//
// Every rank of a group makes the same calls in the same order. A rank may hold several shards of the plan, or none.
#pragma once

// The C interface alone; Open MPI's old C++ one would have to be linked too.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <memory>
#include <span>

#include "tpce/communicator.h"

namespace tpce::mpi {

class MpiCommunicator final : public Communicator {
 public:
  // Bytes that a row takes in a message: the fields of RowPartial, without padding.
  static constexpr std::int64_t kBytesPerRow = 36;
  // Counts of MPI calls are int, and some transports keep a call's bytes in one too.
  static constexpr std::int64_t kMaxRowsPerCall = (std::int64_t{1} << 30) / kBytesPerRow;

  // The ranks of comm, which stays the caller's: messages go over a duplicate. Collective over comm. Longer chunks of
  // rows take several calls of at most rows_per_call rows. Throws std::runtime_error where MPI fails.
  explicit MpiCommunicator(MPI_Comm comm = MPI_COMM_WORLD, std::int64_t rows_per_call = kMaxRowsPerCall);
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  // The group of the ranks that give the same color >= 0, in their order here. Collective.
  std::unique_ptr<MpiCommunicator> split(int color) const;

  std::string_view name() const override { return "mpi"; }
  std::int64_t size() const override { return size_; }
  std::int64_t rank() const override { return rank_; }
  bool accepts(DeviceType device) const override { return device == DeviceType::kCpu; }

  // The merger is not used: MPI calls the operation while other ranks' rows arrive.
  Pending start_all_reduce(const Partials& partials, Backend& merger, Queue queue) override;
  void finish(Pending pending, Queue queue) override;
  void all_reduce(BinnedSum& sum) override;
  std::vector<std::string> all_gather(std::string_view mine) override;

  // Prints "tpce: error: rank 2 of 4: <reason>" on stderr, with the rank among all, and ends every rank with exit code
  // 2, after wait_to_tell() of environment.h. No destructor runs; what must be done before is for set_before_abort().
  void abort(std::string_view reason) noexcept override;
  void set_before_abort(void (*cleanup)() noexcept) { before_abort_ = cleanup; }

 private:
  struct InFlight;

  InFlight& idle_slot();
  void check(int result, const char* call) const;

  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Datatype row_type_ = MPI_DATATYPE_NULL;
  MPI_Datatype sum_type_ = MPI_DATATYPE_NULL;
  MPI_Op merge_rows_ = MPI_OP_NULL;
  MPI_Op merge_sums_ = MPI_OP_NULL;
  std::int64_t size_ = 1;
  std::int64_t rank_ = 0;
  std::int64_t rows_per_call_;
  void (*before_abort_)() noexcept = nullptr;
  std::vector<std::unique_ptr<InFlight>> in_flight_;  // those that ended are used again
};

}  // namespace tpce::mpi
