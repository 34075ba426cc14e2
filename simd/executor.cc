#include "simd/executor.h"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tpce::simd {

namespace {

int checked_threads(int threads) {
  if (threads < 0 || threads > kMaxThreads) {
    throw std::invalid_argument("threads: got " + std::to_string(threads) + ", expected 0.." +
                                std::to_string(kMaxThreads) + " (0: as many as there are)");
  }
  return threads == 0 ? tbb::info::default_concurrency() : threads;
}

class TbbExecutor final : public Executor {
 public:
  explicit TbbExecutor(int threads) : threads_(threads), arena_(threads) {
    // oneTBB starts no more threads than there are processors unless it is told to, and the lowest limit of all wins.
    if (threads > tbb::info::default_concurrency()) {
      more_than_processors_.emplace(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads));
    }
  }

  int threads() const override { return threads_; }

  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& task) override {
    if (threads_ == 1) {
      for (std::int64_t i = 0; i < count; ++i) task(i);
      return;
    }
    arena_.execute([&] { tbb::parallel_for(std::int64_t{0}, count, task); });
  }

 private:
  int threads_;
  std::optional<tbb::global_control> more_than_processors_;
  tbb::task_arena arena_;
};

class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(int threads) : threads_(threads) {}

  int threads() const override { return threads_; }

  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& task) override {
    std::atomic<std::int64_t> next{0};
    std::exception_ptr error;
    std::mutex error_mutex;
    const auto work = [&] {
      try {
        for (std::int64_t i = next++; i < count; i = next++) task(i);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        next = count;
      }
    };
    std::vector<std::jthread> workers;
    for (int i = 1; i < threads_; ++i) workers.emplace_back(work);
    work();
    workers.clear();
    if (error) std::rethrow_exception(error);
  }

 private:
  int threads_;
};

}  // namespace

std::unique_ptr<Executor> make_tbb_executor(int threads) {
  return std::make_unique<TbbExecutor>(checked_threads(threads));
}

std::unique_ptr<Executor> make_thread_executor(int threads) {
  return std::make_unique<ThreadExecutor>(checked_threads(threads));
}

}  // namespace tpce::simd
