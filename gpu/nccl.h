// NCCL's calls, as many as its communicator needs: by the library (open_nccl()), or by a stand-in of the tests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tpce/matrix.h"

namespace tpce::gpu {

// What the ranks of a group meet by: one of them makes it, all of them give it.
struct NcclId {
  std::array<char, 128> bytes{};
};

struct NcclReduction {
  enum class Type { kUint32, kInt64 };
  enum class Operation { kMax, kSum };

  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;
  Type type = Type::kInt64;
  Operation operation = Operation::kSum;
};

// Nothing here waits: what a call began may still be in progress when it returns, and until state() says that it is
// not, no other call but abort() may follow. Calls throw std::runtime_error with NCCL's words. Memory is the device's;
// from and to do not overlap.
class NcclApi {
 public:
  using Comm = void*;

  struct State {
    bool in_progress = false;
    std::string error;  // that struck this rank at any time, or empty
  };

  virtual ~NcclApi() = default;

  virtual NcclId make_id() = 0;
  virtual Comm start(const NcclId& id, std::int64_t rank, std::int64_t size) = 0;

  // Calls between the two are taken together, at the second.
  virtual void group_start() = 0;
  virtual void group_end(Comm comm) = 0;
  // `to` gets the bytes of every rank, in the order of ranks.
  virtual void all_gather(const void* from, void* to, std::size_t bytes, Comm comm, Queue queue) = 0;
  virtual void all_reduce(const NcclReduction& reduction, Comm comm, Queue queue) = 0;

  virtual State state(Comm comm) = 0;

  // Releases comm. What is in progress on its queues ends, whatever is in its memory then.
  virtual void abort(Comm comm) noexcept = 0;
  // Releases comm, on which nothing is in progress any more.
  virtual void finish(Comm comm) noexcept = 0;
};

// The library libnccl.so.2, for the device of that number as CUDA counts them. Throws std::runtime_error, one line that
// says why there is none: a build without nccl.h, no library or an old one, no driver or no device.
std::unique_ptr<NcclApi> open_nccl(int device = 0);

}  // namespace tpce::gpu
