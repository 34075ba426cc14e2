// One clear error for each way in which a machine may lack a GPU. The driver is a stand-in (fake_cuda.cc), which ctest
// puts where the real one would be looked for; each case is a process of its own, since a driver is loaded once.
#include "gpu/cuda_driver.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <stdexcept>

namespace tpce::gpu {
namespace {

// Starts the driver where `failure` is asked of the stand-in, and says on stderr what came of it.
[[noreturn]] void start_with(const char* failure) {
  setenv("FAKE_CUDA", failure, 1);
  try {
    cuda_driver();
    std::cerr << "started\n";
  } catch (const std::runtime_error& error) {
    std::cerr << error.what() << '\n';
  }
  std::exit(0);
}

TEST(CudaDriver, Starts) { EXPECT_EXIT(start_with(""), testing::ExitedWithCode(0), "^started\n$"); }

TEST(CudaDriver, SaysThatThereIsNoDevice) {
  EXPECT_EXIT(start_with("no device"), testing::ExitedWithCode(0),
              "^gpu: NVIDIA's driver is here, but it knows no device\n$");
}

TEST(CudaDriver, SaysThatTheDriverIsTooOld) {
  EXPECT_EXIT(start_with("old"), testing::ExitedWithCode(0),
              "^gpu: NVIDIA's driver is for CUDA 12.4, and the kernels are of CUDA 1[0-9]\\.[0-9]; expected a driver "
              "for CUDA 1[0-9] or later\n$");
}

TEST(CudaDriver, GivesTheDriversOwnWords) {
  EXPECT_EXIT(start_with("broken start"), testing::ExitedWithCode(0),
              "^gpu: NVIDIA's driver does not start: words of the fake\n$");
}

TEST(CudaDriver, NamesWhatFailed) {
  EXPECT_NO_THROW(check_cuda(CUDA_SUCCESS, "nothing"));
  try {
    check_cuda(CUDA_ERROR_LAUNCH_FAILED, "the launch of k");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "gpu: the launch of k failed: CUDA_ERROR_LAUNCH_FAILED, words of the fake");
  }
  EXPECT_THROW(check_cuda(CUDA_ERROR_OUT_OF_MEMORY, "allocating"), std::bad_alloc);
}

}  // namespace
}  // namespace tpce::gpu
