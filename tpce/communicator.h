// Communicator: merges partials across the ranks of a tensor-parallel group. One collective a chunk of rows, started
// and finished separately, so that it overlaps the kernels of the next chunk.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tpce/backend.h"

namespace tpce {

// Bad input that every rank of the group knows of, and throws alike: no rank waits for another, so none is ended.
class CollectiveError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class Communicator {
 public:
  // A collective in flight.
  struct Pending {
    void* request = nullptr;
  };

  virtual ~Communicator() = default;

  virtual std::string_view name() const = 0;
  virtual std::int64_t size() const = 0;
  virtual std::int64_t rank() const = 0;
  virtual bool accepts(DeviceType device) const = 0;

  // Starts to replace the partials of every rank by their merge, by way of merger.merge(). The partials stay untouched
  // by the caller until finish().
  virtual Pending start_all_reduce(const Partials& partials, Backend& merger, Queue queue) = 0;
  virtual void finish(Pending pending, Queue queue) = 0;

  // Throws where a collective failed after finish() returned, as it can where a queue goes on without this thread.
  // Called when the results that depend on it are here; without the call they may be of no meaning.
  virtual void confirm() {}

  // Merges a sum of every rank: the optional second collective, for the gradient norm.
  virtual void all_reduce(BinnedSum& sum) = 0;

  // What each rank gives, in the order of ranks: for the checks among ranks, short: once a batch, and for what they
  // refuse.
  virtual std::vector<std::string> all_gather(std::string_view mine) = 0;

  // Ends the run on every rank, with the reason, where this rank cannot go on.
  virtual void abort(std::string_view reason) noexcept = 0;
};

// One process that holds every shard: there is nobody to talk to.
class SelfCommunicator final : public Communicator {
 public:
  std::string_view name() const override { return "self"; }
  std::int64_t size() const override { return 1; }
  std::int64_t rank() const override { return 0; }
  bool accepts(DeviceType) const override { return true; }
  Pending start_all_reduce(const Partials&, Backend&, Queue) override { return {}; }
  void finish(Pending, Queue) override {}
  void all_reduce(BinnedSum&) override {}
  std::vector<std::string> all_gather(std::string_view mine) override { return {std::string(mine)}; }
  void abort(std::string_view) noexcept override {}
};

}  // namespace tpce
