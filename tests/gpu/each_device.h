// Tests that run on the host executor always, and on a GPU where there is one.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "gpu/cuda_device.h"
#include "gpu/host_device.h"

namespace tpce::gpu {

// By the name of its backend.
class EachDevice : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "gpu_emulated") {
      device_ = std::make_unique<HostDevice>(HostDeviceOptions{.seed = 5});
      return;
    }
    try {
      device_ = open_cuda_device();
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  bool emulated() const { return device_->type() == DeviceType::kCpu; }

  std::unique_ptr<Device> device_;
};

inline auto each_device() { return ::testing::Values("gpu_emulated", "gpu"); }
inline std::string name_of_device(const ::testing::TestParamInfo<std::string>& device) { return device.param; }

}  // namespace tpce::gpu
