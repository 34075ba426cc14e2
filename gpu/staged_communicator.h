// The communicator for partials in device memory by way of the host: copied there, merged by a communicator of host
// memory (mpi/mpi_communicator.h, say), and copied back. For several ranks on one device, which NCCL does not take, and
// for machines without NCCL.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "tpce/communicator.h"
#include "tpce/scalar_backend.h"

namespace tpce::gpu {

class StagedCommunicator final : public Communicator {
 public:
  // Both outlive this.
  StagedCommunicator(Communicator& host, Device& device) : host_(host), device_(device) {}
  StagedCommunicator(const StagedCommunicator&) = delete;
  StagedCommunicator& operator=(const StagedCommunicator&) = delete;

  std::string_view name() const override { return "staged"; }
  std::int64_t size() const override { return host_.size(); }
  std::int64_t rank() const override { return host_.rank(); }
  bool accepts(DeviceType device) const override { return device == device_.type(); }

  // Waits for the queue; the host's collective is then in flight until finish(), which waits for that alone.
  Pending start_all_reduce(const Partials& partials, Backend& merger, Queue queue) override;
  void finish(Pending pending, Queue queue) override;

  void confirm() override { host_.confirm(); }
  void all_reduce(BinnedSum& sum) override { host_.all_reduce(sum); }
  std::vector<std::string> all_gather(std::string_view mine) override { return host_.all_gather(mine); }
  void abort(std::string_view reason) noexcept override { host_.abort(reason); }

 private:
  struct InFlight {
    Partials on_device;
    Partials on_host;
    std::vector<std::int64_t> memory;
    Pending pending;
    bool busy = false;
  };

  InFlight& idle_slot();

  Communicator& host_;
  Device& device_;
  ScalarBackend merger_;  // of the partials on the host
  std::vector<std::unique_ptr<InFlight>> in_flight_;
};

}  // namespace tpce::gpu
