// The communicator over NCCL, for partials in device memory: the merge of ranks as an all-gather and one kernel, or as
// a maximum and a sum of integers (two_step_merge.h), with the same bits.
//
//   GpuBackend backend(open_cuda_device(ordinal));
//   const auto nccl = open_nccl(ordinal);
//   HostFailureBoard board(world);                                  // world: an mpi::MpiCommunicator, say
//   NcclCommunicator ranks(*nccl, backend.device(), nccl_rank(*nccl, world), board);
//   cross_entropy_forward(batch, {}, {}, {backend, ranks, rows_per_chunk, queue});
//
// Every rank makes the same calls in the same order, with the same options and devices of its own: NCCL takes no two
// ranks on one device (staged_communicator.h does).
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "gpu/device.h"
#include "gpu/failure_board.h"
#include "gpu/nccl.h"
#include "tpce/communicator.h"

namespace tpce::gpu {

struct NcclRank {
  NcclId id;
  std::int64_t rank = 0;
  std::int64_t size = 1;
};

// Of the ranks of another communicator, by an id that its rank 0 makes. Collective.
NcclRank nccl_rank(NcclApi& api, Communicator& host);

struct NcclOptions {
  enum class Merge { kBySize, kGather, kTwoSteps };

  Merge merge = Merge::kBySize;
  // kBySize gathers where there are two ranks, which a maximum and a sum would cost more, and as long as the partials
  // of all ranks take at most so many bytes: beyond, each rank would receive many times what two sums bring.
  std::size_t most_bytes_gathered = std::size_t{4} << 20;
};

class NcclCommunicator final : public Communicator {
 public:
  // Collective. Throws std::runtime_error where NCCL fails on some rank. All arguments outlive this.
  NcclCommunicator(NcclApi& api, Device& device, const NcclRank& rank, FailureBoard& board,
                   const NcclOptions& options = {});
  // Waits for what was asked of the device. Collective, but where a rank has failed.
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  std::string_view name() const override { return "nccl"; }
  std::int64_t size() const override { return size_; }
  std::int64_t rank() const override { return rank_; }
  bool accepts(DeviceType device) const override { return device == device_.type(); }

  // Neither waits: the collective runs on a queue of its own, after what `queue` was asked for before the start and
  // before what it is asked for after finish(). NCCL alone may wait for the other ranks to come as far, where it
  // connects them for the first collective of its kind. The merger is not used. Memory for a collective is allocated
  // when more of them, or longer ones, are in flight than ever before.
  Pending start_all_reduce(const Partials& partials, Backend& merger, Queue queue) override;
  void finish(Pending pending, Queue queue) override;

  // These wait.
  void all_reduce(BinnedSum& sum) override;
  std::vector<std::string> all_gather(std::string_view mine) override;

  // A failure on any rank, NCCL's or one told by abort(), ends what is in flight on every rank, with whatever in its
  // memory; from then on every call, confirm() too, throws std::runtime_error with the text of the first failure of
  // all: "rank 2 of 4: <reason>".
  void confirm() override;
  void abort(std::string_view reason) noexcept override;

 private:
  struct InFlight;
  using Lock = std::unique_lock<std::mutex>;

  bool gathers(std::int64_t rows) const;
  void gather(const Partials& partials, InFlight& slot);
  void reduce_in_two_steps(const Partials& partials, InFlight& slot);
  std::vector<std::byte> gather_bytes(std::span<const std::byte> mine);
  InFlight& idle_slot();

  template <class Body>
  auto guarded(Body&& body);
  template <class Calls>
  void ask(Calls&& calls);
  void wait_until_taken();
  bool look(const Lock&) noexcept;
  void fail(const Lock&, std::string_view reason) noexcept;
  void throw_if_failed(const Lock&) const;
  void watch(const std::stop_token& stop);

  NcclApi& api_;
  Device& device_;
  FailureBoard& board_;
  const NcclOptions options_;
  const std::int64_t rank_;
  const std::int64_t size_;

  DeviceObject queue_;  // of the collectives
  std::vector<std::unique_ptr<InFlight>> in_flight_;

  mutable std::mutex mutex_;      // of what follows
  NcclApi::Comm comm_ = nullptr;  // null once it failed
  std::string_view failure_;      // of the board
  std::condition_variable_any stopped_;
  std::jthread watcher_;  // last, so that it ends first
};

}  // namespace tpce::gpu
