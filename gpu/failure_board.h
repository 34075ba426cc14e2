// Where a rank that fails says why, for the others to read: NCCL tells them at best that somebody is gone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <thread>

#include "tpce/communicator.h"

namespace tpce::gpu {

// For ranks that are threads of one process, one board for all. Called from any thread; nothing here allocates, since
// memory may be what ran out.
class FailureBoard {
 public:
  static constexpr std::size_t kLongest = 1023;  // bytes that are kept of a text

  explicit FailureBoard(std::int64_t size) : size_(size) {}
  virtual ~FailureBoard() = default;
  FailureBoard(const FailureBoard&) = delete;
  FailureBoard& operator=(const FailureBoard&) = delete;

  // The first post of all stays.
  virtual void post(std::int64_t rank, std::string_view reason) noexcept;
  // "rank 2 of 4: <reason>" of the first post; empty where there is none.
  std::string_view first() const noexcept { return {text_.data(), length_.load(std::memory_order_acquire)}; }

 protected:
  // That of the first post, once there is one.
  std::string_view reason() const noexcept { return first().substr(reason_begin_); }

 private:
  const std::int64_t size_;
  std::mutex posting_;
  std::array<char, kLongest + 1> text_{};
  std::size_t reason_begin_ = 0;
  std::atomic<std::size_t> length_ = 0;  // of text_, which stays as it is once this is not 0
};

// For ranks that are processes which a communicator of host memory joins, one for each: what is posted from the thread
// that made this ends the run by that communicator's abort(), which over MPI prints the reason once and does not
// return. What another thread posts waits for the next post, since MPI is called from one thread alone.
class HostFailureBoard final : public FailureBoard {
 public:
  explicit HostFailureBoard(Communicator& host)
      : FailureBoard(host.size()), host_(host), owner_(std::this_thread::get_id()) {}

  void post(std::int64_t rank, std::string_view reason) noexcept override;

 private:
  Communicator& host_;
  const std::thread::id owner_;
};

}  // namespace tpce::gpu
