// A stand-in for NVIDIA's driver, built as libcuda.so.1: one device whose memory is the host's, and whose kernels do
// nothing but be written down. FAKE_CUDA makes it fail: "no device", "old", "broken start", "no memory", "launch",
// "other architecture", "no room" for clusters.
#include <cuda.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

namespace {

bool asked(std::string_view failure) {
  const char* set = std::getenv("FAKE_CUDA");
  return set != nullptr && set == failure;
}

std::string& log() {
  static std::string lines;
  return lines;
}

std::map<std::string, int>& functions() {
  static std::map<std::string, int> known;
  return known;
}

template <class Pointer>
void* pointer(Pointer address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace

extern "C" {

// What was launched since the last call, a line each.
__attribute__((visibility("default"))) const char* fake_cuda_log() {
  static std::string last;
  last.swap(log());
  log().clear();
  return last.c_str();
}

CUresult cuInit(unsigned) {
  return asked("no device")      ? CUDA_ERROR_NO_DEVICE
         : asked("broken start") ? CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
                                 : CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) { return *version = asked("old") ? 12040 : 13000, CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_OF_THE_FAKE";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** words) { return *words = "words of the fake", CUDA_SUCCESS; }

CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return *device = ordinal, ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = 0;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = 232448;
      break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return *context = reinterpret_cast<CUcontext>(&log()), CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext* context) { return *context = reinterpret_cast<CUcontext>(&log()), CUDA_SUCCESS; }

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  if (asked("no memory")) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) { return std::free(pointer(address)), CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute, CUdeviceptr) {
  CUcontext context = reinterpret_cast<CUcontext>(&log());
  std::memcpy(value, &context, sizeof context);
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo(std::size_t* available, std::size_t* total) {
  return *available = *total = std::size_t{1} << 30, CUDA_SUCCESS;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream) {
  return std::memcpy(pointer(to), pointer(from), bytes), CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream) { return asked("launch") ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS; }
CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  log() += flags == CU_STREAM_NON_BLOCKING ? "queue\n" : "queue that waits for the default one\n";
  return *stream = reinterpret_cast<CUstream>(&log()), CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream) { return log() += "no queue\n", CUDA_SUCCESS; }
CUresult cuStreamGetCtx(CUstream, CUcontext* context) {
  return *context = reinterpret_cast<CUcontext>(&log()), CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  log() +=
      std::string(stream != nullptr ? "queue" : "default") + (event != nullptr ? " waits\n" : " waits for nothing\n");
  return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned) { return *event = reinterpret_cast<CUevent>(&log()), CUDA_SUCCESS; }
CUresult cuEventDestroy(CUevent) { return log() += "no event\n", CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent, CUstream stream) {
  return log() += stream != nullptr ? "queue marked\n" : "default marked\n", CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) { return *milliseconds = 1, CUDA_SUCCESS; }

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (asked("other architecture")) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  // The magic number of a fatbin.
  unsigned magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  *module = reinterpret_cast<CUmodule>(&log());
  return magic == 0xba55ed50u ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = reinterpret_cast<CUfunction>(const_cast<char*>(functions().emplace(name, 0).first->first.c_str()));
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) { return *value = 1024, CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  return *clusters = asked("no room") ? 0 : 1, CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void**, void**) {
  log() += std::string(reinterpret_cast<const char*>(function)) + " grid " + std::to_string(config->gridDimX) + "x" +
           std::to_string(config->gridDimY) + "x" + std::to_string(config->gridDimZ) + " block " +
           std::to_string(config->blockDimX) + " shared " + std::to_string(config->sharedMemBytes);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return CUDA_ERROR_INVALID_VALUE;
    log() += " clusters of " + std::to_string(attribute.value.clusterDim.x) + "x" +
             std::to_string(attribute.value.clusterDim.y) + "x" + std::to_string(attribute.value.clusterDim.z);
  }
  log() += "\n";
  return CUDA_SUCCESS;
}

}  // extern "C"
