// The device that CUDA drives, over a stand-in for the driver (fake_cuda.cc): memory, copies, what is launched, and
// each error. That kernels compute what they should is not seen here: gpu_device_test asks a real device.
#include "gpu/cuda_device.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace tpce::gpu {
namespace {

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override { fail_with(""); }
  void TearDown() override { fail_with(""); }

  static void fail_with(const char* failure) { setenv("FAKE_CUDA", failure, 1); }

  // What was launched since the last call.
  static std::string launched() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) throw std::runtime_error("no driver is loaded");
    return reinterpret_cast<const char* (*)()>(dlsym(library, "fake_cuda_log"))();
  }

  static std::string message_of(auto&& call) {
    try {
      call();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(CudaDevice, TellsWhatItIs) {
  const auto device = open_cuda_device();
  EXPECT_EQ(device->name(), "gpu");
  EXPECT_EQ(device->type(), DeviceType::kCuda);
  EXPECT_EQ(device->properties().model, "Fake GPU");
  EXPECT_EQ(device->properties().multiprocessors, 132);
  EXPECT_EQ(device->properties().compute_capability, 90);
  EXPECT_EQ(device->properties().shared_bytes_per_block, 232448u);
  EXPECT_EQ(device->properties().blocks_per_cluster, 8);
}

TEST_F(CudaDevice, CopiesThereAndBack) {
  const auto device = open_cuda_device();
  const std::vector<int> given = {1, 2, 3};
  std::vector<int> got(3);
  const std::size_t bytes = 3 * sizeof(int);
  const Buffer first = device->allocate(bytes);
  const Buffer second = device->allocate(bytes);
  device->copy_to_device(first.get(), given.data(), bytes, {});
  device->copy_on_device(second.get(), first.get(), bytes, {});
  device->copy_to_host(got.data(), second.get(), bytes, {});
  EXPECT_EQ(got, given);
  device->copy_to_host(nullptr, nullptr, 0, {});
  EXPECT_NE(device->allocate(0).get(), nullptr);
}

TEST_F(CudaDevice, MemoryOutlivesIt) {
  auto device = open_cuda_device();
  const Buffer memory = device->allocate(64);
  device.reset();
}

TEST_F(CudaDevice, LaunchesEachKernelByItsName) {
  const auto device = open_cuda_device();
  launched();
  for (int i = 0; i < kKernels; ++i) {
    const KernelInfo& info = kKernelInfos[i];
    const std::vector<char> arguments(info.arguments_bytes);
    device->launch(static_cast<Kernel>(i), {.blocks = 7, .shared_bytes = info.shared_bytes}, arguments.data(), {});
    EXPECT_EQ(launched(), std::string(info.name) + " grid 7x1x1 block " + std::to_string(info.threads) + " shared " +
                              std::to_string(info.shared_bytes) + "\n");
  }
}

TEST_F(CudaDevice, LaunchesClusters) {
  const auto device = open_cuda_device();
  const std::vector<char> arguments(kKernelInfos[0].arguments_bytes);
  launched();
  device->launch(Kernel{}, {.blocks = 12, .shared_bytes = 64, .cluster = 4}, arguments.data(), {});
  EXPECT_EQ(launched(), std::string(kKernelInfos[0].name) + " grid 12x1x1 block " +
                            std::to_string(kKernelInfos[0].threads) + " shared 64 clusters of 4x1x1\n");
}

// The fake's kernels declare 1 KiB of their own.
TEST_F(CudaDevice, KnowsWhatItHasRoomFor) {
  const auto device = open_cuda_device();
  EXPECT_TRUE(device->has_room(Kernel{}, {.blocks = 1, .shared_bytes = 231424}));
  EXPECT_FALSE(device->has_room(Kernel{}, {.blocks = 1, .shared_bytes = 231425}));
  EXPECT_TRUE(device->has_room(Kernel{}, {.blocks = 8, .shared_bytes = 64, .cluster = 8}));
  EXPECT_FALSE(device->has_room(Kernel{}, {.blocks = 16, .shared_bytes = 64, .cluster = 16}));
  fail_with("no room");
  EXPECT_FALSE(device->has_room(Kernel{}, {.blocks = 8, .shared_bytes = 64, .cluster = 8}));
  EXPECT_TRUE(device->has_room(Kernel{}, {.blocks = 8, .shared_bytes = 64}));
}

TEST_F(CudaDevice, OrdersQueues) {
  auto device = open_cuda_device();
  launched();
  {
    const DeviceObject queue = device->make_queue();
    const DeviceObject event = device->make_event();
    device->record(event, {queue.get()});
    device->wait_for(event, {});
    device->record(event, {});
    device->wait_for(event, {queue.get()});
    device.reset();  // both outlive it
    EXPECT_EQ(launched(), "queue\nqueue marked\ndefault waits\ndefault marked\nqueue waits\n");
  }
  EXPECT_EQ(launched(), "no event\nno queue\n");
}

TEST_F(CudaDevice, NoBlocksAreNoLaunch) {
  const auto device = open_cuda_device();
  launched();
  device->launch(Kernel{}, {}, nullptr, {});
  EXPECT_EQ(launched(), "");
}

TEST_F(CudaDevice, RefusesMoreBlocksThanAGridHas) {
  const auto device = open_cuda_device();
  const std::string kernel(kKernelInfos[0].name);
  EXPECT_EQ(message_of([&] { device->launch(Kernel{}, {.blocks = std::int64_t{1} << 31}, nullptr, {}); }),
            kernel + ": got 2147483648 blocks, expected fewer than 2^31");
}

TEST_F(CudaDevice, NamesTheDeviceThatIsNotThere) {
  EXPECT_EQ(message_of([] { open_cuda_device(3); }), "gpu: got device 3, expected one in [0, 1)");
  EXPECT_EQ(message_of([] { open_cuda_device(-1); }), "gpu: got device -1, expected one in [0, 1)");
}

TEST_F(CudaDevice, SaysThatTheKernelsAreForOtherDevices) {
  fail_with("other architecture");
  EXPECT_EQ(message_of([] { open_cuda_device(); }),
            "gpu: Fake GPU is of sm_90, and the kernels are for " TPCE_CUDA_ARCHITECTURES
            "; expected a build with -DTPCE_CUDA_ARCHITECTURES=90");
}

TEST_F(CudaDevice, RunsOutOfMemoryAsOthersDo) {
  const auto device = open_cuda_device();
  fail_with("no memory");
  EXPECT_THROW(device->allocate(1), std::bad_alloc);
}

TEST_F(CudaDevice, ReportsAtSynchronizeWhatFailedBefore) {
  const auto device = open_cuda_device();
  fail_with("launch");
  EXPECT_EQ(message_of([&] { device->synchronize({}); }),
            "gpu: waiting for the device failed: CUDA_ERROR_LAUNCH_FAILED, words of the fake");
}

}  // namespace
}  // namespace tpce::gpu
