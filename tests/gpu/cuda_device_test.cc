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
  void TearDown() override {
    fail_with("");
    EXPECT_EQ(asked_of_fake<std::size_t>("fake_cuda_contexts"), 0u);
  }

  static void fail_with(const char* failure) { setenv("FAKE_CUDA", failure, 1); }

  // What the driver was asked for since the last call.
  static std::string log() { return asked_of_fake<const char*>("fake_cuda_log"); }

  // The line of a launch of 7 blocks.
  static std::string launch_line(const KernelInfo& info, const std::string& queue, const std::string& first_bytes) {
    return std::string(info.name) + " grid 7x1x1 block " + std::to_string(info.threads) + "x1x1 shared " +
           std::to_string(info.shared_bytes) + " on " + queue + " of " + first_bytes + "\n";
  }

  static std::string message_of(auto&& call) {
    try {
      call();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  template <class Result>
  static Result asked_of_fake(const char* function) {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) throw std::runtime_error("no driver is loaded");
    return reinterpret_cast<Result (*)()>(dlsym(library, function))();
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
  const DeviceObject queue = device->make_queue();
  const std::vector<int> given = {1, 2, 3};
  std::vector<int> got(3);
  const std::size_t bytes = 3 * sizeof(int);
  const Buffer first = device->allocate(bytes);
  const Buffer second = device->allocate(bytes);
  log();
  device->copy_to_device(first.get(), given.data(), bytes, {queue.get()});
  device->copy_on_device(second.get(), first.get(), bytes, {queue.get()});
  device->copy_to_host(got.data(), second.get(), bytes, {queue.get()});
  EXPECT_EQ(got, given);
  EXPECT_EQ(log(),
            "copy of 12 bytes on queue 1\nwait for queue 1\ncopy of 12 bytes on queue 1\ncopy of 12 bytes on queue 1\n"
            "wait for queue 1\n");
  device->copy_to_device(first.get(), nullptr, 0, {queue.get()});
  EXPECT_EQ(log(), "");
  device->copy_to_host(nullptr, nullptr, 0, {});
  EXPECT_EQ(log(), "wait for the default queue\n");
  EXPECT_NE(device->allocate(0).get(), nullptr);
}

// The driver may read the source as late as when it is waited for, and then finds what is there.
TEST_F(CudaDevice, HasReadWhatIsNotPageLocked) {
  const auto device = open_cuda_device();
  const Buffer memory = device->allocate(sizeof(int));
  const auto found_there = [&](const char* kind) {
    fail_with(kind);
    int given = 7;
    device->copy_to_device(memory.get(), &given, sizeof(int), {});
    given = 8;
    int found = 0;
    device->copy_to_host(&found, memory.get(), sizeof(int), {});
    return found;
  };
  EXPECT_EQ(found_there(""), 7);
  EXPECT_EQ(found_there("managed"), 7);
  EXPECT_EQ(found_there("page-locked"), 8);
}

// Nor do its kernels end before those that were launched have run.
TEST_F(CudaDevice, MemoryOutlivesIt) {
  auto device = open_cuda_device();
  log();
  {
    const Buffer memory = device->allocate(64);
    device.reset();
    EXPECT_EQ(log(), "wait for all\nend of the kernels\n");
  }
  EXPECT_EQ(log(), "free of 64 bytes\n");
}

TEST_F(CudaDevice, LaunchesEachKernelByItsName) {
  const auto device = open_cuda_device();
  const DeviceObject queue = device->make_queue();
  log();
  for (int i = 0; i < kKernels; ++i) {
    const KernelInfo& info = kKernelInfos[i];
    const std::vector<unsigned char> arguments(info.arguments_bytes, static_cast<unsigned char>(0xa0 + i % 16));
    const std::string digit(1, "0123456789abcdef"[i % 16]);
    std::string bytes;
    for (int k = 0; k < 8; ++k) bytes += "a" + digit;
    const Launch launch{.blocks = 7, .shared_bytes = info.shared_bytes};
    device->launch(static_cast<Kernel>(i), launch, arguments.data(), {queue.get()});
    EXPECT_EQ(log(), launch_line(info, "queue 1", bytes));
    device->launch(static_cast<Kernel>(i), launch, arguments.data(), {});
    EXPECT_EQ(log(), launch_line(info, "the default queue", bytes));
  }
}

TEST_F(CudaDevice, LaunchesClusters) {
  const auto device = open_cuda_device();
  const std::vector<char> arguments(kKernelInfos[0].arguments_bytes);
  log();
  device->launch(Kernel{}, {.blocks = 12, .shared_bytes = 64, .cluster = 4}, arguments.data(), {});
  EXPECT_EQ(log(), std::string(kKernelInfos[0].name) + " grid 12x1x1 block " + std::to_string(kKernelInfos[0].threads) +
                       "x1x1 shared 64 clusters of 4x1x1 on the default queue of 0000000000000000\n");
}

// Beyond 48 KiB only what was asked for is there.
TEST_F(CudaDevice, LaunchesWithAllTheSharedMemoryThatThereIs) {
  const auto device = open_cuda_device();
  const std::string kernel(kKernelInfos[0].name);
  const std::vector<char> arguments(kKernelInfos[0].arguments_bytes);
  const auto launch = [&](std::size_t bytes) {
    return message_of([&] { device->launch(Kernel{}, {.blocks = 1, .shared_bytes = bytes}, arguments.data(), {}); });
  };
  EXPECT_EQ(launch(231424), "no error");
  EXPECT_EQ(launch(231425), "gpu: the launch of " + kernel + " failed: CUDA_ERROR_OF_THE_FAKE, words of the fake");
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
  log();
  {
    const DeviceObject first = device->make_queue();
    const DeviceObject second = device->make_queue();
    const DeviceObject event = device->make_event();
    device->record(event, {second.get()});
    device->wait_for(event, {first.get()});
    device->record(event, {});
    device->wait_for(event, {});
    device->synchronize({second.get()});
    EXPECT_EQ(log(),
              "queue 1\nqueue 2\nqueue 2 marked\nqueue 1 waits\nthe default queue marked\nthe default queue waits\n"
              "wait for queue 2\n");
    device.reset();  // all of them outlive it
    EXPECT_EQ(log(), "wait for all\nend of the kernels\n");
  }
  EXPECT_EQ(log(), "no event\nend of queue 2\nend of queue 1\n");
}

TEST_F(CudaDevice, NoBlocksAreNoLaunch) {
  const auto device = open_cuda_device();
  log();
  device->launch(Kernel{}, {}, nullptr, {});
  EXPECT_EQ(log(), "");
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
