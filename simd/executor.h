// Runs independent tasks over threads. Order-freedom makes any schedule give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace tpce::simd {

// More than any use of threads here gains from: a typing error.
inline constexpr int kMaxThreads = 1024;

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int threads() const = 0;
  // Calls task(i) once for each i in [0, count), on any thread, and returns when all have ended. The first exception of
  // a task is rethrown.
  virtual void for_each(std::int64_t count, const std::function<void(std::int64_t)>& task) = 0;
};

// oneTBB. threads = 0 means as many as the process may use; throws std::invalid_argument below 0 or above
// kMaxThreads.
std::unique_ptr<Executor> make_tbb_executor(int threads);

// std::thread, started anew for each call: for ThreadSanitizer, which reports races inside oneTBB that are none.
std::unique_ptr<Executor> make_thread_executor(int threads);

}  // namespace tpce::simd
