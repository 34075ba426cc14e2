#include "gpu/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "gpu/two_step_merge.h"
#include "tpce/planes.h"

namespace tpce::gpu {

namespace {

// How often a rank that has nothing to say looks whether another has failed.
constexpr std::chrono::milliseconds kWatch{5};
// How often a rank looks whether NCCL has taken its calls, which it does in some microseconds but for the first ones.
constexpr std::chrono::microseconds kTaken{20};

template <class Arguments>
void launch_rows(Device& device, const Arguments& arguments, std::int64_t rows, Queue queue) {
  const Launch launch{(rows + Arguments::kThreads - 1) / Arguments::kThreads, Arguments::kSharedBytes};
  device.launch(KernelOf<Arguments>::value, launch, &arguments, queue);
}

std::size_t bytes_of(std::int64_t rows, std::size_t bytes_per_row) {
  return static_cast<std::size_t>(rows) * bytes_per_row;
}

}  // namespace

NcclRank nccl_rank(NcclApi& api, Communicator& host) {
  // One letter, then the id or why there is none.
  constexpr char kMade = 'M';
  constexpr char kFailed = 'F';
  std::string mine;
  if (host.rank() == 0) {
    try {
      const NcclId id = api.make_id();
      mine = kMade + std::string(id.bytes.begin(), id.bytes.end());
    } catch (const std::exception& error) {
      mine = kFailed + std::string(error.what());
    }
  }
  const std::string made = host.all_gather(mine).front();
  NcclRank rank{.id = {}, .rank = host.rank(), .size = host.size()};
  if (made.size() != 1 + rank.id.bytes.size() || made.front() != kMade) {
    throw std::runtime_error("rank 0 of " + std::to_string(host.size()) + ": " + made.substr(1));
  }
  std::copy(made.begin() + 1, made.end(), rank.id.bytes.begin());
  return rank;
}

struct NcclCommunicator::InFlight {
  explicit InFlight(const Device& device) : begin(device.make_event()), end(device.make_event()) {}

  void reserve(const Device& device, std::size_t bytes) {
    if (bytes <= capacity) return;
    memory = device.allocate(bytes);
    capacity = bytes;
  }

  DeviceObject begin;
  DeviceObject end;
  Buffer memory{nullptr, [](void*) {}};
  std::size_t capacity = 0;
  bool busy = false;
};

// Runs what uses the communicator; what it throws is a failure of this rank.
template <class Body>
auto NcclCommunicator::guarded(Body&& body) {
  confirm();
  try {
    return body();
  } catch (const std::exception& error) {
    const Lock lock(mutex_);
    fail(lock, error.what());
    throw std::runtime_error(std::string(failure_));
  }
}

// Calls of one group. A group is the thread's own: it ends here whatever happens.
template <class Calls>
void NcclCommunicator::ask(Calls&& calls) {
  {
    const Lock lock(mutex_);
    throw_if_failed(lock);
    api_.group_start();
    try {
      calls(comm_);
    } catch (...) {
      try {
        api_.group_end(comm_);
      } catch (const std::exception&) {
        // The first error tells more.
      }
      throw;
    }
    api_.group_end(comm_);
  }
  wait_until_taken();
}

NcclCommunicator::NcclCommunicator(NcclApi& api, Device& device, const NcclRank& rank, FailureBoard& board,
                                   const NcclOptions& options)
    : api_(api),
      device_(device),
      board_(board),
      options_(options),
      rank_(rank.rank),
      size_(rank.size),
      queue_(device.make_queue()) {
  if (size_ < 1 || size_ > kMaxRanksCounted) {
    throw std::invalid_argument("ranks: got " + std::to_string(size_) + ", expected 1.." +
                                std::to_string(kMaxRanksCounted));
  }
  if (rank_ < 0 || rank_ >= size_) {
    throw std::invalid_argument("rank: got " + std::to_string(rank_) + ", expected 0.." + std::to_string(size_ - 1));
  }
  guarded([&] {
    {
      const Lock lock(mutex_);
      comm_ = api_.start(rank.id, rank_, size_);
    }
    wait_until_taken();
    watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  });
}

NcclCommunicator::~NcclCommunicator() {
  try {
    device_.synchronize({queue_.get()});
  } catch (const std::exception&) {
    // Whoever wanted a result was told of it.
  }
  watcher_ = {};
  if (comm_ != nullptr) api_.finish(comm_);
}

Communicator::Pending NcclCommunicator::start_all_reduce(const Partials& partials, Backend&, Queue queue) {
  return guarded([&]() -> Pending {
    InFlight& slot = idle_slot();
    const Queue own{queue_.get()};
    if (partials.rows > 0) {
      device_.record(slot.begin, queue);
      device_.wait_for(slot.begin, own);
      if (gathers(partials.rows)) {
        gather(partials, slot);
      } else {
        reduce_in_two_steps(partials, slot);
      }
    }
    device_.record(slot.end, own);
    slot.busy = true;
    return {&slot};
  });
}

void NcclCommunicator::finish(Pending pending, Queue queue) {
  guarded([&] {
    InFlight& slot = *static_cast<InFlight*>(pending.request);
    device_.wait_for(slot.end, queue);
    // What uses the slot next runs on the same queue, after all that uses it now.
    slot.busy = false;
  });
}

bool NcclCommunicator::gathers(std::int64_t rows) const {
  if (options_.merge != NcclOptions::Merge::kBySize) return options_.merge == NcclOptions::Merge::kGather;
  return size_ <= 2 || bytes_of(rows * size_, Partials::bytes_per_row({})) <= options_.most_bytes_gathered;
}

void NcclCommunicator::gather(const Partials& partials, InFlight& slot) {
  const Queue own{queue_.get()};
  slot.reserve(device_, bytes_of(partials.rows * size_, Partials::bytes_per_row({})));
  const Partials all = Partials::in(slot.memory.get(), partials.rows * size_, {});
  ask([&](NcclApi::Comm comm) {
    for_each_plane([&](const auto* from,
                       auto* to) { api_.all_gather(from, to, bytes_of(partials.rows, sizeof *from), comm, own); },
                   partials, all);
  });
  const MergeArguments merge{{}, partials, all, size_, partials.rows, /*keeps=*/false};
  launch_rows(device_, merge, partials.rows, own);
}

void NcclCommunicator::reduce_in_two_steps(const Partials& partials, InFlight& slot) {
  const Queue own{queue_.get()};
  const std::int64_t rows = partials.rows;
  const std::size_t count_bytes = bytes_of(rows, RowCounts::kBytesPerRow);
  const std::size_t key_bytes = bytes_of(rows, RowKeys::kBytesPerRow);
  slot.reserve(device_, 2 * (count_bytes + key_bytes));
  auto* memory = static_cast<std::byte*>(slot.memory.get());
  const RowCounts counts = RowCounts::in(memory, rows);
  const RowCounts sum = RowCounts::in(memory + count_bytes, rows);
  const RowKeys keys = RowKeys::in(memory + 2 * count_bytes, rows);
  const RowKeys top = RowKeys::in(memory + 2 * count_bytes + key_bytes, rows);
  const auto reduce = [&](const void* from, void* to, NcclReduction::Type type, NcclReduction::Operation operation) {
    const std::size_t planes = type == NcclReduction::Type::kUint32 ? 2 : 4;
    ask([&](NcclApi::Comm comm) {
      api_.all_reduce({from, to, planes * static_cast<std::size_t>(rows), type, operation}, comm, own);
    });
  };
  launch_rows(device_, RowKeysArguments{{}, partials, keys}, rows, own);
  reduce(keys.max_logit, top.max_logit, NcclReduction::Type::kUint32, NcclReduction::Operation::kMax);
  launch_rows(device_, AlignDigitsArguments{{}, partials, top, counts}, rows, own);
  reduce(counts.d0, sum.d0, NcclReduction::Type::kInt64, NcclReduction::Operation::kSum);
  launch_rows(device_, JoinRowsArguments{{}, top, sum, partials}, rows, own);
}

void NcclCommunicator::all_reduce(BinnedSum& sum) {
  guarded([&] {
    const std::vector<std::byte> all = gather_bytes(std::as_bytes(std::span(&sum, 1)));
    BinnedSum merged;
    for (std::size_t first = 0; first < all.size(); first += sizeof sum) {
      BinnedSum one;
      std::memcpy(&one, all.data() + first, sizeof one);
      merge(merged, one);
    }
    sum = merged;
  });
}

std::vector<std::string> NcclCommunicator::all_gather(std::string_view mine) {
  return guarded([&] {
    const std::uint64_t size = mine.size();
    const std::vector<std::byte> all_sizes = gather_bytes(std::as_bytes(std::span(&size, 1)));
    std::vector<std::uint64_t> sizes(static_cast<std::size_t>(size_));
    std::memcpy(sizes.data(), all_sizes.data(), all_sizes.size());
    // Every rank gives as much as the longest.
    const std::uint64_t longest = *std::max_element(sizes.begin(), sizes.end());
    std::string padded(mine);
    padded.resize(longest);
    const std::vector<std::byte> all = gather_bytes(std::as_bytes(std::span(padded)));
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < sizes.size(); ++r) {
      std::string& text = texts.emplace_back(sizes[r], '\0');
      if (!text.empty()) std::memcpy(text.data(), all.data() + r * longest, text.size());
    }
    return texts;
  });
}

// Of as many bytes on every rank.
std::vector<std::byte> NcclCommunicator::gather_bytes(std::span<const std::byte> mine) {
  std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(size_));
  if (all.empty()) return all;
  const Queue own{queue_.get()};
  InFlight& slot = idle_slot();
  slot.reserve(device_, mine.size() + all.size());
  auto* from = static_cast<std::byte*>(slot.memory.get());
  std::byte* to = from + mine.size();
  device_.copy_to_device(from, mine.data(), mine.size(), own);
  ask([&](NcclApi::Comm comm) { api_.all_gather(from, to, mine.size(), comm, own); });
  device_.copy_to_host(all.data(), to, all.size(), own);
  // Where a rank failed meanwhile, these are no bytes of anybody.
  const Lock lock(mutex_);
  look(lock);
  throw_if_failed(lock);
  return all;
}

NcclCommunicator::InFlight& NcclCommunicator::idle_slot() {
  for (const auto& slot : in_flight_) {
    if (!slot->busy) return *slot;
  }
  return *in_flight_.emplace_back(std::make_unique<InFlight>(device_));
}

void NcclCommunicator::confirm() {
  const Lock lock(mutex_);
  look(lock);
  throw_if_failed(lock);
}

void NcclCommunicator::abort(std::string_view reason) noexcept {
  const Lock lock(mutex_);
  // Also where it failed before: a HostFailureBoard may have waited for this thread.
  board_.post(rank_, reason);
  fail(lock, reason);
}

void NcclCommunicator::wait_until_taken() {
  for (;;) {
    {
      const Lock lock(mutex_);
      const bool in_progress = look(lock);
      throw_if_failed(lock);
      if (!in_progress) return;
    }
    std::this_thread::sleep_for(kTaken);
  }
}

// Whether NCCL has still to take calls; a failure, also one to look, is noted.
bool NcclCommunicator::look(const Lock& lock) noexcept {
  if (!failure_.empty()) return false;
  // What another rank said comes first: that it is gone is only what NCCL makes of it.
  if (!board_.first().empty()) fail(lock, {});
  if (comm_ == nullptr) return false;
  try {
    const NcclApi::State state = api_.state(comm_);
    if (!state.error.empty()) fail(lock, state.error);
    return state.in_progress;
  } catch (const std::exception& error) {
    fail(lock, error.what());
    return false;
  }
}

// The reason stays where no rank has failed before. No allocation: memory may be what ran out.
void NcclCommunicator::fail(const Lock&, std::string_view reason) noexcept {
  if (!failure_.empty()) return;
  if (board_.first().empty()) board_.post(rank_, reason);
  failure_ = board_.first();
  if (comm_ != nullptr) api_.abort(comm_);
  comm_ = nullptr;
}

void NcclCommunicator::throw_if_failed(const Lock&) const {
  if (!failure_.empty()) throw std::runtime_error(std::string(failure_));
}

void NcclCommunicator::watch(const std::stop_token& stop) {
  Lock lock(mutex_);
  while (failure_.empty() && !stop.stop_requested()) {
    stopped_.wait_for(lock, stop, kWatch, [] { return false; });
    look(lock);
  }
}

}  // namespace tpce::gpu
