// A stand-in for NVIDIA's management library, built as libnvidia-ml.so.1: one device, at 0001:ab:02.0, whose
// multiprocessors run at 1755 MHz. FAKE_CUDA makes it fail: "no clock".
#include <cstdlib>
#include <string_view>

struct nvmlDevice_st {};

extern "C" {

int nvmlInit_v2();
int nvmlDeviceGetHandleByPciBusId_v2(const char* place, nvmlDevice_st** device);
int nvmlDeviceGetClockInfo(nvmlDevice_st* device, int clock, unsigned* megahertz);

int nvmlInit_v2() {
  const char* failure = std::getenv("FAKE_CUDA");
  return failure != nullptr && std::string_view(failure) == "no clock" ? 1 : 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* place, nvmlDevice_st** device) {
  static nvmlDevice_st only;
  *device = &only;
  return std::string_view(place) == "00000001:ab:02.0" ? 0 : 6;
}
int nvmlDeviceGetClockInfo(nvmlDevice_st*, int clock, unsigned* megahertz) {
  *megahertz = clock == 1 ? 1755 : 9999;  // 1: that of multiprocessors
  return 0;
}

}  // extern "C"
