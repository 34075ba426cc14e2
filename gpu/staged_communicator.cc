#include "gpu/staged_communicator.h"

#include "tpce/planes.h"

namespace tpce::gpu {

Communicator::Pending StagedCommunicator::start_all_reduce(const Partials& partials, Backend&, Queue queue) {
  InFlight& slot = idle_slot();
  const auto rows = static_cast<std::size_t>(partials.rows);
  const std::size_t bytes = rows * Partials::bytes_per_row({});
  slot.memory.resize((bytes + sizeof(std::int64_t) - 1) / sizeof(std::int64_t));
  slot.on_device = partials;
  slot.on_host = Partials::in(slot.memory.data(), partials.rows, {});
  for_each_plane([&](auto* to, const auto* from) { device_.copy_to_host(to, from, rows * sizeof *from, queue); },
                 slot.on_host, partials);
  slot.pending = host_.start_all_reduce(slot.on_host, merger_, queue);
  slot.busy = true;
  return {&slot};
}

void StagedCommunicator::finish(Pending pending, Queue queue) {
  InFlight& slot = *static_cast<InFlight*>(pending.request);
  host_.finish(slot.pending, queue);
  const auto rows = static_cast<std::size_t>(slot.on_host.rows);
  for_each_plane([&](auto* to, const auto* from) { device_.copy_to_device(to, from, rows * sizeof *from, queue); },
                 slot.on_device, slot.on_host);
  // The copies have read the memory, which is not page-locked.
  slot.busy = false;
}

StagedCommunicator::InFlight& StagedCommunicator::idle_slot() {
  for (const auto& slot : in_flight_) {
    if (!slot->busy) return *slot;
  }
  return *in_flight_.emplace_back(std::make_unique<InFlight>());
}

}  // namespace tpce::gpu
