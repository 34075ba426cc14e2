#include "simd/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace tpce::simd {
namespace {

using Make = std::unique_ptr<Executor> (*)(int);

class ExecutorTest : public testing::TestWithParam<Make> {};

TEST_P(ExecutorTest, RunsEachTaskOnce) {
  for (const int threads : {1, 2, 5}) {
    const auto executor = GetParam()(threads);
    EXPECT_EQ(executor->threads(), threads);
    for (const std::int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      executor->for_each(count, [&](std::int64_t i) { runs[static_cast<std::size_t>(i)]++; });
      for (const auto& run : runs) EXPECT_EQ(run.load(), 1);
    }
  }
}

TEST_P(ExecutorTest, RethrowsWhatATaskThrows) {
  const auto executor = GetParam()(3);
  const auto fail = [](std::int64_t i) {
    if (i == 7) throw std::runtime_error("task 7");
  };
  EXPECT_THROW(executor->for_each(100, fail), std::runtime_error);
}

TEST_P(ExecutorTest, ZeroMeansEveryProcessor) { EXPECT_GE(GetParam()(0)->threads(), 1); }

TEST_P(ExecutorTest, RefusesThreadsThatCannotBe) {
  for (const int threads : {-1, 5000}) {
    try {
      GetParam()(threads);
      FAIL() << threads;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(threads)), std::string::npos) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Executors, ExecutorTest, testing::Values(&make_tbb_executor, &make_thread_executor),
                         [](const auto& make) { return make.param == &make_tbb_executor ? "tbb" : "std_thread"; });

}  // namespace
}  // namespace tpce::simd
