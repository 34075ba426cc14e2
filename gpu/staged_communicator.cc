#include "gpu/staged_communicator.h"

namespace tpce::gpu {

namespace {

// Calls visit(plane of a, plane of b, bytes) for each plane.
template <class Visit>
void for_each_plane(const Partials& a, const Partials& b, Visit visit) {
  const auto plane = [&](auto* of_a, auto* of_b) {
    visit(of_a, of_b, static_cast<std::size_t>(a.rows) * sizeof *of_a);
  };
  plane(a.d0, b.d0);
  plane(a.d1, b.d1);
  plane(a.d2, b.d2);
  plane(a.max_logit, b.max_logit);
  plane(a.target_logit, b.target_logit);
  plane(a.flags, b.flags);
}

}  // namespace

Communicator::Pending StagedCommunicator::start_all_reduce(const Partials& partials, Backend&, Queue queue) {
  InFlight& slot = idle_slot();
  const std::size_t bytes = static_cast<std::size_t>(partials.rows) * Partials::bytes_per_row({});
  slot.memory.resize((bytes + sizeof(std::int64_t) - 1) / sizeof(std::int64_t));
  slot.on_device = partials;
  slot.on_host = Partials::in(slot.memory.data(), partials.rows, {});
  for_each_plane(slot.on_host, partials,
                 [&](void* to, const void* from, std::size_t size) { device_.copy_to_host(to, from, size, queue); });
  slot.pending = host_.start_all_reduce(slot.on_host, merger_, queue);
  slot.busy = true;
  return {&slot};
}

void StagedCommunicator::finish(Pending pending, Queue queue) {
  InFlight& slot = *static_cast<InFlight*>(pending.request);
  host_.finish(slot.pending, queue);
  for_each_plane(slot.on_device, slot.on_host,
                 [&](void* to, const void* from, std::size_t size) { device_.copy_to_device(to, from, size, queue); });
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
