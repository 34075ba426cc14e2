// NVIDIA's driver, found when the program runs: nothing of CUDA is linked, so that a program with kernels in it starts
// on any machine. Only where cuda.h is, which comes with nvcc.
#pragma once

#include <cuda.h>

#include <string>
#include <string_view>

#include "gpu/dynamic_library.h"

namespace tpce::gpu {

// The functions of the driver without which nothing runs: cuda_driver().Init is cuInit, in the version that cuda.h
// names.
#define TPCE_CUDA_FUNCTIONS(X)  \
  X(Init)                       \
  X(DriverGetVersion)           \
  X(GetErrorName)               \
  X(GetErrorString)             \
  X(DeviceGetCount)             \
  X(DeviceGet)                  \
  X(DeviceGetName)              \
  X(DeviceGetAttribute)         \
  X(DevicePrimaryCtxRetain)     \
  X(CtxPushCurrent)             \
  X(CtxPopCurrent)              \
  X(CtxSynchronize)             \
  X(MemAlloc)                   \
  X(MemFree)                    \
  X(MemcpyAsync)                \
  X(PointerGetAttribute)        \
  X(StreamCreate)               \
  X(StreamDestroy)              \
  X(StreamGetCtx)               \
  X(StreamSynchronize)          \
  X(StreamWaitEvent)            \
  X(EventCreate)                \
  X(EventDestroy)               \
  X(EventRecord)                \
  X(ModuleLoadData)             \
  X(ModuleUnload)               \
  X(ModuleGetFunction)          \
  X(FuncSetAttribute)           \
  X(FuncGetAttribute)           \
  X(OccupancyMaxActiveClusters) \
  X(LaunchKernelEx)

struct CudaDriver {
#define TPCE_CUDA_MEMBER(name) decltype(&cu##name) name;
  TPCE_CUDA_FUNCTIONS(TPCE_CUDA_MEMBER)
#undef TPCE_CUDA_MEMBER
};

// Loads and starts the driver at the first call. Throws std::runtime_error where there is none, it is too old, or it
// knows no device: one line that says which.
const CudaDriver& cuda_driver();

// The driver for what else it has: cuda_library().find(TPCE_CUDA_NAME(cuMemGetInfo), function). cuda.h renames some
// functions to their newest versions, so their names are spelt by the preprocessor after it did.
#define TPCE_CUDA_QUOTED(name) #name
#define TPCE_CUDA_NAME(name) TPCE_CUDA_QUOTED(name)
const DynamicLibrary& cuda_library();

// The device of that number. Throws std::runtime_error with the numbers that there are.
CUdevice cuda_device(int ordinal);

// Throws std::runtime_error with what was done and the driver's own words where the result is not CUDA_SUCCESS;
// std::bad_alloc where memory is out.
void check_cuda(CUresult result, std::string_view what);

}  // namespace tpce::gpu
