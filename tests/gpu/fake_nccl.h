// A stand-in for NCCL over ranks that are threads of the test, on late devices (late_device.h). A collective's bytes
// arrive on a rank when that rank waits for its queue; from the moment the queue reaches the collective until then its
// destination holds poison. Calls are taken late as well: a queue learns of them only after state() was asked some
// times. Ranks that fail do so as NCCL's do: a call throws, or an error comes up later and the collective never ends;
// the others hang until they abort too.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/nccl.h"
#include "tests/gpu/late_device.h"

namespace tpce::gpu::testing {

// What goes wrong, and where.
struct Failure {
  enum class Kind { kStart, kCall, kLater, kWatch };  // kWatch: state() throws on another thread than start()'s

  Kind kind = Kind::kCall;
  std::int64_t rank = -1;
  int call = 0;  // of that rank, counted from 0
};

// The ranks that meet.
class FakeNccl {
 public:
  FakeNccl(World& world, std::int64_t size) : world_(world), size_(size) {}
  void fail(const Failure& failure) { failure_ = failure; }

  std::vector<std::string> log;  // of rank 0: "group of 6", "all_reduce max"
  std::int64_t finished = 0;     // communicators, in good order
  std::int64_t aborted = 0;

 private:
  friend class FakeNcclApi;

  struct Call {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t bytes = 0;     // of one rank's source
    std::size_t to_bytes = 0;  // of its destination
    std::optional<NcclReduction> reduction;
  };
  struct Part {
    LateQueue* queue = nullptr;
    std::int64_t position = 0;  // of the queue's operations
    Call call;
    std::vector<std::byte> sent;
    bool has_sent = false;
  };
  struct Collective {
    std::vector<std::optional<Part>> parts;  // by rank
  };
  struct Rank {
    FakeNccl* group = nullptr;
    std::int64_t rank = 0;
    int calls = 0;
    std::size_t collectives = 0;
    std::vector<std::pair<Call, LateQueue*>> asked;  // but not taken yet
    int polls_until_taken = 0;
    bool started = false;
    bool aborted = false;
    std::string error;
    std::thread::id starter = std::this_thread::get_id();
  };

  bool send(Part& part) {
    if (part.has_sent) return true;
    if (!part.queue->advance(part.position)) return false;
    send_now(part);
    return true;
  }

  bool receive(Collective& collective, std::int64_t rank) {
    if (ranks_[static_cast<std::size_t>(rank)]->aborted) return true;  // poison stays
    Part& own = *collective.parts[static_cast<std::size_t>(rank)];
    // The queue stands at this operation: what came before is done.
    if (!own.has_sent) send_now(own);
    for (std::size_t r = 0; r < collective.parts.size(); ++r) {
      auto& part = collective.parts[r];
      if (!part || ranks_[r]->aborted || hangs_) return false;
      if (!send(*part)) return false;
      if (part->call.bytes != own.call.bytes) throw std::logic_error("ranks differ in the bytes of a collective");
    }
    deliver(collective, own.call);
    return true;
  }

  static void send_now(Part& part) {
    part.sent.assign(part.call.from, part.call.from + part.call.bytes);
    std::memset(part.call.to, kPoison, part.call.to_bytes);
    part.has_sent = true;
  }

  static void deliver(const Collective& collective, const Call& call) {
    if (!call.reduction) {
      for (std::size_t r = 0; r < collective.parts.size(); ++r) {
        std::memcpy(call.to + r * call.bytes, collective.parts[r]->sent.data(), call.bytes);
      }
      return;
    }
    if (call.reduction->type == NcclReduction::Type::kUint32) {
      reduce<std::uint32_t>(collective, call);
    } else {
      reduce<std::int64_t>(collective, call);
    }
  }

  template <class T>
  static void reduce(const Collective& collective, const Call& call) {
    for (std::size_t i = 0; i < call.bytes; i += sizeof(T)) {
      T result{};
      for (std::size_t r = 0; r < collective.parts.size(); ++r) {
        T value;
        std::memcpy(&value, collective.parts[r]->sent.data() + i, sizeof value);
        if (r == 0) {
          result = value;
        } else if (call.reduction->operation == NcclReduction::Operation::kMax) {
          result = std::max(result, value);
        } else {
          result += value;
        }
      }
      std::memcpy(call.to + i, &result, sizeof result);
    }
  }

  World& world_;
  std::int64_t size_;
  Failure failure_;
  bool hangs_ = false;
  std::map<std::size_t, std::shared_ptr<Collective>> collectives_;  // by their number
  std::vector<std::unique_ptr<Rank>> ranks_ = std::vector<std::unique_ptr<Rank>>(static_cast<std::size_t>(size_));
};

// One rank's library.
class FakeNcclApi final : public NcclApi {
 public:
  FakeNcclApi(FakeNccl& group, const LateDevice& device) : group_(group), device_(device) {}

  NcclId make_id() override {
    NcclId id;
    std::fill(id.bytes.begin(), id.bytes.end(), 'i');
    return id;
  }

  Comm start(const NcclId& id, std::int64_t rank, std::int64_t size) override {
    const std::lock_guard lock(group_.world_.mutex);
    if (id.bytes.back() != 'i' || size != group_.size_) throw std::logic_error("start: another group");
    if (fails(Failure::Kind::kStart, rank, 0)) throw std::runtime_error("ncclCommInitRank: out of file handles");
    auto& made = group_.ranks_[static_cast<std::size_t>(rank)];
    made = std::make_unique<FakeNccl::Rank>();
    made->group = &group_;
    made->rank = rank;
    return made.get();
  }

  void group_start() override {
    if (in_group_) throw std::logic_error("group_start: in a group already");
    in_group_ = true;
  }
  void group_end(Comm comm) override {
    if (!std::exchange(in_group_, false)) throw std::logic_error("group_end: in no group");
    const std::lock_guard lock(group_.world_.mutex);
    FakeNccl::Rank& rank = live(comm);
    if (rank.rank == 0) group_.log.push_back("group of " + std::to_string(rank.asked.size()));
    rank.polls_until_taken = 2;
  }
  void all_gather(const void* from, void* to, std::size_t bytes, Comm comm, Queue queue) override {
    const auto size = static_cast<std::size_t>(group_.size_);
    ask({static_cast<const std::byte*>(from), static_cast<std::byte*>(to), bytes, bytes * size, {}}, comm, queue);
  }
  void all_reduce(const NcclReduction& reduction, Comm comm, Queue queue) override {
    const std::size_t bytes = reduction.count * (reduction.type == NcclReduction::Type::kUint32 ? 4 : 8);
    ask({static_cast<const std::byte*>(reduction.from), static_cast<std::byte*>(reduction.to), bytes, bytes, reduction},
        comm, queue);
  }

  State state(Comm comm) override {
    const std::lock_guard lock(group_.world_.mutex);
    FakeNccl::Rank& rank = live(comm);
    if (fails(Failure::Kind::kWatch, rank.rank, 0) && rank.starter != std::this_thread::get_id()) {
      throw std::runtime_error("ncclCommGetAsyncError: out of threads");
    }
    if (!rank.started) {  // until everybody is here
      rank.started =
          std::all_of(group_.ranks_.begin(), group_.ranks_.end(), [](const auto& r) { return r != nullptr; });
    }
    if (!rank.asked.empty() && rank.polls_until_taken-- == 0) take(rank);
    std::string error = rank.error;
    // That a rank is gone is all that the others learn.
    const bool gone = std::any_of(group_.ranks_.begin(), group_.ranks_.end(),
                                  [](const auto& r) { return r != nullptr && r->aborted; });
    if (error.empty() && gone) error = "remote process exited or there was a network error";
    return {!rank.started || !rank.asked.empty(), error};
  }

  void abort(Comm comm) noexcept override {
    const std::lock_guard lock(group_.world_.mutex);
    live(comm).aborted = true;
    ++group_.aborted;
    group_.world_.changed.notify_all();
  }
  void finish(Comm comm) noexcept override {
    const std::lock_guard lock(group_.world_.mutex);
    if (live(comm).asked.empty()) ++group_.finished;
  }

 private:
  // After abort() a comm is no more.
  static FakeNccl::Rank& live(Comm comm) {
    auto* rank = static_cast<FakeNccl::Rank*>(comm);
    if (rank == nullptr || rank->aborted) throw std::logic_error("a call on a communicator that was aborted");
    return *rank;
  }

  bool fails(Failure::Kind kind, std::int64_t rank, int call) const {
    return group_.failure_.kind == kind && group_.failure_.rank == rank && group_.failure_.call == call;
  }

  void ask(const FakeNccl::Call& call, Comm comm, Queue queue) {
    if (!in_group_) throw std::logic_error("a call outside of a group");
    if (call.from < call.to + call.to_bytes && call.to < call.from + call.bytes) {
      throw std::logic_error("source and destination overlap");
    }
    const std::lock_guard lock(group_.world_.mutex);
    FakeNccl::Rank& rank = live(comm);
    if (!rank.started) throw std::logic_error("a call before the communicator has started");
    if (rank.rank == 0 && call.reduction) {
      const bool max = call.reduction->operation == NcclReduction::Operation::kMax;
      group_.log.push_back(max ? "all_reduce max" : "all_reduce sum");
    }
    const int number = rank.calls++;
    if (fails(Failure::Kind::kCall, rank.rank, number)) throw std::runtime_error("ncclAllGather: unhandled cuda error");
    if (fails(Failure::Kind::kLater, rank.rank, number)) {
      rank.error = "unhandled system error";
      group_.hangs_ = true;
    }
    rank.asked.emplace_back(call, &device_.late(queue));
  }

  void take(FakeNccl::Rank& rank) {
    for (const auto& [call, queue] : rank.asked) {
      auto& collective = group_.collectives_[rank.collectives++];
      if (!collective) {
        collective = std::make_shared<FakeNccl::Collective>();
        collective->parts.resize(static_cast<std::size_t>(group_.size_));
      }
      collective->parts[static_cast<std::size_t>(rank.rank)] = FakeNccl::Part{queue, queue->asked, call, {}, false};
      queue->ask([group = &group_, collective, r = rank.rank] { return group->receive(*collective, r); });
    }
    rank.asked.clear();
  }

  FakeNccl& group_;
  const LateDevice& device_;
  bool in_group_ = false;
};

}  // namespace tpce::gpu::testing
