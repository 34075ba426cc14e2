#include "gpu/cuda_driver.h"

#include <new>
#include <stdexcept>

#include "gpu/dynamic_library.h"

namespace tpce::gpu {
namespace {

// cuda.h renames some functions to their newest versions, so names are spelt by the preprocessor after it did.
#define TPCE_QUOTED_AS_IS(name) #name
#define TPCE_QUOTED(name) TPCE_QUOTED_AS_IS(name)

std::string version(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

CudaDriver load() {
  // Never closed: the driver has threads of its own.
  const DynamicLibrary library{.handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL),
                               .name = "gpu: NVIDIA's driver",
                               .expected = "CUDA " + version(CUDA_VERSION) + " or later"};
  if (library.handle == nullptr) throw std::runtime_error("gpu: no NVIDIA driver was found: " + std::string(dlerror()));
  CudaDriver driver{};
#define TPCE_CUDA_FIND(name) library.find(TPCE_QUOTED(cu##name), driver.name);
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
  static const CudaDriver driver = load();
  return driver;
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
