// A stand-in for NVIDIA's driver, built as libcuda.so.1: one device whose memory is the host's, and whose kernels do
// nothing but be written down, as are copies, queues, events, and memory that is released. Copies are made as late as
// they may be: once somebody waits. What needs a context fails where none is current. Built without FAKE_CUDA_MEASURES
// it lacks what measurements alone need. The variable FAKE_CUDA makes it fail: "no device", "old", "broken start", "no
// memory", "launch", "other architecture", "no room" for clusters; or host memory be "page-locked" or "managed".
#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

bool asked(std::string_view failure) {
  const char* set = std::getenv("FAKE_CUDA");
  return set != nullptr && set == failure;
}

constexpr int kSharedBytes = 232448;  // of a block, where they are asked for
constexpr int kUnaskedBytes = 48 * 1024;
constexpr int kDeclaredBytes = 1024;  // of every kernel

struct Kernel {
  std::string name;
  int dynamic_bytes = kUnaskedBytes - kDeclaredBytes;  // that a launch may give it
};

struct Stream {
  int number;
};

struct Copy {
  CUdeviceptr to;
  CUdeviceptr from;
  std::size_t bytes;
};

struct Fake {
  std::string log;
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
  std::map<CUdeviceptr, std::size_t> memory;
  std::map<CUstream, Stream> streams;
  std::vector<Copy> copies;  // yet to be made, of all queues
};

// Never released: memory may be freed while the process ends.
Fake& fake() {
  static Fake& made = *new Fake;
  return made;
}

std::string& log() { return fake().log; }

CUcontext context_of_device() { return reinterpret_cast<CUcontext>(&fake()); }

thread_local std::vector<CUcontext> current_contexts;

bool is_ready() { return !current_contexts.empty() && current_contexts.back() == context_of_device(); }

template <class Pointer>
void* pointer(Pointer address) {
  return reinterpret_cast<void*>(address);
}

void make_copies() {
  for (const Copy& copy : fake().copies) std::memcpy(pointer(copy.to), pointer(copy.from), copy.bytes);
  fake().copies.clear();
}

// "queue 1" and so on; unknown ones as such.
std::string name_of(CUstream stream) {
  if (stream == nullptr) return "the default queue";
  const auto found = fake().streams.find(stream);
  return found == fake().streams.end() ? "no queue" : "queue " + std::to_string(found->second.number);
}

std::string hexadecimal(const void* bytes, std::size_t count) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned byte = static_cast<const unsigned char*>(bytes)[i];
    text += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return text;
}

}  // namespace

extern "C" {

// What was asked for since the last call, a line each.
__attribute__((visibility("default"))) const char* fake_cuda_log() {
  static std::string last;
  last.swap(log());
  log().clear();
  return last.c_str();
}
// How many contexts this thread has made current, and not left.
__attribute__((visibility("default"))) std::size_t fake_cuda_contexts() { return current_contexts.size(); }

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
      *value = kSharedBytes;
      break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return *context = context_of_device(), CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) { return current_contexts.push_back(context), CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext* context) {
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = current_contexts.back();
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  make_copies();
  return log() += "wait for all\n", CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (asked("no memory")) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  fake().memory[*address] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) {
  const auto found = fake().memory.find(address);
  if (!is_ready() || found == fake().memory.end()) return CUDA_ERROR_INVALID_VALUE;
  make_copies();
  log() += "free of " + std::to_string(found->second) + " bytes\n";
  fake().memory.erase(found);
  std::free(pointer(address));
  return CUDA_SUCCESS;
}
// Of the first byte of an allocation.
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  if (!fake().memory.contains(address) && !asked("page-locked") && !asked("managed")) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = context_of_device();
  const unsigned is_managed = asked("managed") ? 1 : 0;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return std::memcpy(value, &context, sizeof context), CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return std::memcpy(value, &is_managed, sizeof is_managed), CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  log() += "copy of " + std::to_string(bytes) + " bytes on " + name_of(stream) + "\n";
  return fake().copies.push_back({to, from, bytes}), CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  log() += "wait for " + name_of(stream) + "\n";
  make_copies();
  return asked("launch") ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}
// With the lowest number that is free.
CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  int number = 1;
  const auto is_taken = [&](const auto& known) { return known.second.number == number; };
  while (std::any_of(fake().streams.begin(), fake().streams.end(), is_taken)) ++number;
  *stream = reinterpret_cast<CUstream>(new Stream{number});
  fake().streams[*stream] = {number};
  log() += name_of(*stream) + (flags == CU_STREAM_NON_BLOCKING ? "\n" : ", which waits for the default one\n");
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream) {
  if (!is_ready() || !fake().streams.contains(stream)) return CUDA_ERROR_INVALID_VALUE;
  log() += "end of " + name_of(stream) + "\n";
  fake().streams.erase(stream);
  delete reinterpret_cast<Stream*>(stream);
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream, CUcontext* context) { return *context = context_of_device(), CUDA_SUCCESS; }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  log() += name_of(stream) + (event != nullptr ? " waits\n" : " waits for nothing\n");
  return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned) {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  return *event = reinterpret_cast<CUevent>(&log()), CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent) {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  return log() += "no event\n", CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent, CUstream stream) {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  return log() += name_of(stream) + " marked\n", CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  if (asked("other architecture")) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  // The magic number of a fatbin.
  unsigned magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  *module = reinterpret_cast<CUmodule>(&log());
  return magic == 0xba55ed50u ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}
CUresult cuModuleUnload(CUmodule) {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  return log() += "end of the kernels\n", CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  std::unique_ptr<Kernel>& kernel = fake().kernels[name];
  kernel.reset(new Kernel{name});
  *function = reinterpret_cast<CUfunction>(kernel.get());
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
      value > kSharedBytes - kDeclaredBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return reinterpret_cast<Kernel*>(function)->dynamic_bytes = value, CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  if (attribute != CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  return *value = kDeclaredBytes, CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  return *clusters = asked("no room") ? 0 : 1, CUDA_SUCCESS;
}
// Writes down the first 8 bytes of the kernel's argument, which all have.
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
  const Kernel& kernel = *reinterpret_cast<const Kernel*>(function);
  if (!is_ready()) return CUDA_ERROR_INVALID_CONTEXT;
  if (config->sharedMemBytes > static_cast<unsigned>(kernel.dynamic_bytes)) return CUDA_ERROR_INVALID_VALUE;
  log() += kernel.name + " grid " + std::to_string(config->gridDimX) + "x" + std::to_string(config->gridDimY) + "x" +
           std::to_string(config->gridDimZ) + " block " + std::to_string(config->blockDimX) + "x" +
           std::to_string(config->blockDimY) + "x" + std::to_string(config->blockDimZ) + " shared " +
           std::to_string(config->sharedMemBytes);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return CUDA_ERROR_INVALID_VALUE;
    log() += " clusters of " + std::to_string(attribute.value.clusterDim.x) + "x" +
             std::to_string(attribute.value.clusterDim.y) + "x" + std::to_string(attribute.value.clusterDim.z);
  }
  log() += " on " + name_of(config->hStream) + " of " + hexadecimal(parameters[0], 8) + "\n";
  return CUDA_SUCCESS;
}

#if defined(FAKE_CUDA_MEASURES)
CUresult cuMemGetInfo(std::size_t* available, std::size_t* total) {
  return *available = *total = std::size_t{1} << 30, CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent) { return make_copies(), CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) { return *milliseconds = 1, CUDA_SUCCESS; }
#endif

}  // extern "C"
