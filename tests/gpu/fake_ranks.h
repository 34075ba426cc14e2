// Ranks as threads, each with a late device (late_device.h) and a communicator over the stand-in for NCCL
// (fake_nccl.h).
#pragma once

#include <cstdint>
#include <exception>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "gpu/nccl_communicator.h"
#include "tests/gpu/fake_nccl.h"

namespace tpce::gpu::testing {

// What a rank's thread works with.
struct FakeRank {
  LateDevice& device;
  NcclCommunicator& communicator;
};

class FakeRanks {
 public:
  explicit FakeRanks(std::int64_t size, const NcclOptions& options = {})
      : options_(options), size_(size), nccl(world, size), board(size) {}

  // Calls body(FakeRank) on every rank, once all have their communicators or have failed to make one, and waits for
  // all. Returns each rank's error message, empty where none.
  template <class Body>
  std::vector<std::string> run(Body body) {
    std::vector<std::string> errors(static_cast<std::size_t>(size_));
    std::vector<std::thread> threads;
    std::latch all_made(size_);
    for (std::int64_t rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        bool made = false;
        try {
          LateDevice device(world, static_cast<std::uint64_t>(rank));
          FakeNcclApi api(nccl, device);
          NcclCommunicator communicator(api, device, {api.make_id(), rank, size_}, board, options_);
          made = true;
          all_made.arrive_and_wait();
          body(FakeRank{device, communicator});
        } catch (const std::exception& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
          if (!made) all_made.count_down();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

 private:
  const NcclOptions options_;
  const std::int64_t size_;

 public:
  World world;
  FakeNccl nccl;
  FailureBoard board;
};

}  // namespace tpce::gpu::testing
