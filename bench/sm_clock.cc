#include "bench/sm_clock.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "gpu/cuda_driver.h"

namespace tpce::bench {
namespace {

// Of nvml.h, which the toolkit's packages for compilers do not hold.
constexpr int kSuccess = 0;
constexpr int kClockOfMultiprocessors = 1;

template <class Function>
Function find(void* library, const char* symbol) {
  return reinterpret_cast<Function>(dlsym(library, symbol));
}

// That library counts devices in another order than CUDA.
std::string place_on_bus(int ordinal) {
  const CUdevice device = gpu::cuda_device(ordinal);
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    gpu::check_cuda(gpu::cuda_driver().DeviceGetAttribute(&value, which, device), "reading the device's place");
    return value;
  };
  return fmt::format("{:08x}:{:02x}:{:02x}.0", attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                     attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID), attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
}

}  // namespace

SmClock::SmClock(int ordinal) {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  const auto init = find<int (*)()>(library, "nvmlInit_v2");
  const auto by_place = find<int (*)(const char*, nvmlDevice_st**)>(library, "nvmlDeviceGetHandleByPciBusId_v2");
  const auto query = find<Query>(library, "nvmlDeviceGetClockInfo");
  if (init == nullptr || by_place == nullptr || query == nullptr || init() != kSuccess) return;
  if (by_place(place_on_bus(ordinal).c_str(), &device_) == kSuccess) query_ = query;
}

std::optional<double> SmClock::now() const {
  unsigned megahertz = 0;
  if (query_ == nullptr || query_(device_, kClockOfMultiprocessors, &megahertz) != kSuccess) return {};
  return megahertz * 1e6;
}

}  // namespace tpce::bench
