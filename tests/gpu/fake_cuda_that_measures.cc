// The stand-in for NVIDIA's driver as tpce-gpu-bench needs it: with what measures, a clock and a place on a bus. It
// refuses to load the kernels twice.
#include <cuda.h>

#define FAKE_CUDA_MEASURES
#define cuDeviceGetAttribute attribute_of_the_stand_in
#define cuModuleLoadData load_into_the_stand_in
#include "tests/gpu/fake_cuda.cc"  // NOLINT(bugprone-suspicious-include): all but two of its functions
#undef cuDeviceGetAttribute
#undef cuModuleLoadData

extern "C" {

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:  // in kHz
      *value = asked("no clock") ? 0 : 1980000;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = 0xab;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      *value = 2;
      return CUDA_SUCCESS;
    default:
      return attribute_of_the_stand_in(value, attribute, device);
  }
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  static bool loaded = false;
  if (loaded) return CUDA_ERROR_ALREADY_MAPPED;
  loaded = true;
  return load_into_the_stand_in(module, image);
}

}  // extern "C"
