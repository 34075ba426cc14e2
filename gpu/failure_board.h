// Where a rank that fails says why, for the others to read: NCCL tells them at best that somebody is gone.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "tpce/communicator.h"

namespace tpce::gpu {

// Called from any thread.
class FailureBoard {
 public:
  virtual ~FailureBoard() = default;
  // The first post of all stays.
  virtual void post(std::int64_t rank, std::string_view reason) = 0;
  // "rank 2 of 4: <reason>" of the first post; empty where there is none.
  virtual std::string first() const = 0;
};

// For ranks that are threads of one process, one board for all.
class SharedFailureBoard final : public FailureBoard {
 public:
  explicit SharedFailureBoard(std::int64_t size) : size_(size) {}

  void post(std::int64_t rank, std::string_view reason) override;
  std::string first() const override;

 private:
  const std::int64_t size_;
  mutable std::mutex mutex_;
  std::string first_;
};

// For ranks that are processes which a communicator of host memory joins, one for each: what is posted from the thread
// that made this ends the run by that communicator's abort(), which over MPI prints the reason once and does not
// return. What another thread posts waits for the next post, since MPI is called from one thread alone.
class HostFailureBoard final : public FailureBoard {
 public:
  explicit HostFailureBoard(Communicator& host) : host_(host), owner_(std::this_thread::get_id()) {}

  void post(std::int64_t rank, std::string_view reason) override;
  std::string first() const override;

 private:
  Communicator& host_;
  const std::thread::id owner_;
  mutable std::mutex mutex_;
  std::string reason_;
  std::string first_;
};

}  // namespace tpce::gpu
