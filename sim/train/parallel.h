// Loops over threads. A task writes what no other task reads, and adds in an order of its own, so that no result
// depends on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simd/executor.h"
#include "tpce/float_mode.h"

namespace tpce::sim {

using simd::Executor;

// Calls body(first, end) for ranges that cover [0, count), each of `grain` or more, but for the last.
template <class Body>
void for_ranges(Executor& executor, std::int64_t count, std::int64_t grain, const Body& body) {
  constexpr std::int64_t kTasksPerThread = 4;  // fewer leave threads idle at the end
  const std::int64_t size =
      std::max(grain, (count + kTasksPerThread * executor.threads() - 1) / (kTasksPerThread * executor.threads()));
  executor.for_each((count + size - 1) / size, [&](std::int64_t task) {
    const DefaultFloatMode mode;
    body(task * size, std::min(count, (task + 1) * size));
  });
}

// Runs tasks on the thread that calls, one after the other: for work inside a task of another executor.
class InlineExecutor final : public Executor {
 public:
  int threads() const override { return 1; }
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& task) override {
    for (std::int64_t i = 0; i < count; ++i) task(i);
  }
};

}  // namespace tpce::sim
