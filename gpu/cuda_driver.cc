#include "gpu/cuda_driver.h"

#include <new>
#include <stdexcept>

namespace tpce::gpu {
namespace {

std::string version(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

// Never closed: the driver has threads of its own.
DynamicLibrary open_library() {
  DynamicLibrary library{.handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL),
                         .name = "gpu: NVIDIA's driver",
                         .expected = "CUDA " + version(CUDA_VERSION) + " or later"};
  if (library.handle == nullptr) throw std::runtime_error("gpu: no NVIDIA driver was found: " + std::string(dlerror()));
  return library;
}

CudaDriver start() {
  CudaDriver driver{};
#define TPCE_CUDA_FIND(name) cuda_library().find(TPCE_CUDA_NAME(cu##name), driver.name);
  TPCE_CUDA_FUNCTIONS(TPCE_CUDA_FIND)
#undef TPCE_CUDA_FIND

  const CUresult started = driver.Init(0);
  int devices = 0;
  if (started == CUDA_ERROR_NO_DEVICE ||
      (started == CUDA_SUCCESS && driver.DeviceGetCount(&devices) == CUDA_SUCCESS && devices == 0)) {
    throw std::runtime_error("gpu: NVIDIA's driver is here, but it knows no device");
  }
  if (started != CUDA_SUCCESS) {
    const char* words = nullptr;
    driver.GetErrorString(started, &words);
    throw std::runtime_error(std::string("gpu: NVIDIA's driver does not start: ") +
                             (words != nullptr ? words : "unknown error"));
  }
  // Machine code of one major version loads with every driver of it.
  int known = 0;
  if (driver.DriverGetVersion(&known) == CUDA_SUCCESS && known / 1000 < CUDA_VERSION / 1000) {
    throw std::runtime_error("gpu: NVIDIA's driver is for CUDA " + version(known) + ", and the kernels are of CUDA " +
                             version(CUDA_VERSION) + "; expected a driver for CUDA " +
                             std::to_string(CUDA_VERSION / 1000) + " or later");
  }
  return driver;
}

}  // namespace

const CudaDriver& cuda_driver() {
  static const CudaDriver driver = start();
  return driver;
}

const DynamicLibrary& cuda_library() {
  static const DynamicLibrary library = open_library();
  return library;
}

CUdevice cuda_device(int ordinal) {
  const CudaDriver& driver = cuda_driver();
  CUdevice device = 0;
  int count = 0;
  check_cuda(driver.DeviceGetCount(&count), "counting devices");
  if (ordinal < 0 || ordinal >= count) {
    throw std::runtime_error("gpu: got device " + std::to_string(ordinal) + ", expected one in [0, " +
                             std::to_string(count) + ")");
  }
  check_cuda(driver.DeviceGet(&device, ordinal), "opening device " + std::to_string(ordinal));
  return device;
}

void check_cuda(CUresult result, std::string_view what) {
  if (result == CUDA_SUCCESS) return;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
  const char* name = nullptr;
  const char* words = nullptr;
  cuda_driver().GetErrorName(result, &name);
  cuda_driver().GetErrorString(result, &words);
  throw std::runtime_error("gpu: " + std::string(what) +
                           " failed: " + (name != nullptr ? name : std::to_string(result)) +
                           (words != nullptr ? std::string(", ") + words : ""));
}

}  // namespace tpce::gpu
