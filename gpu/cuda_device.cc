#include "gpu/cuda_device.h"

#include <array>
#include <limits>
#include <stdexcept>
#include <string>

#include "gpu/cuda_driver.h"

// The machine code of kernels.cu (tpce_cuda_kernels in cmake/TpceCuda.cmake).
extern "C" const unsigned char tpce_kernels_image[];

namespace tpce::gpu {
namespace {

// Makes a context current, and what was current before again at its end.
class CurrentContext {
 public:
  explicit CurrentContext(CUcontext context) { check_cuda(cuda_driver().CtxPushCurrent(context), "using the device"); }
  ~CurrentContext() {
    CUcontext context = nullptr;
    cuda_driver().CtxPopCurrent(&context);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
};

CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
CUstream stream_of(Queue queue) { return static_cast<CUstream>(queue.stream); }

// Of whatever device the memory is. What fails while a process ends is of no account.
void free_memory(void* memory) {
  CUcontext context = nullptr;
  const CudaDriver& driver = cuda_driver();
  if (driver.PointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address_of(memory)) != CUDA_SUCCESS) return;
  if (driver.CtxPushCurrent(context) != CUDA_SUCCESS) return;
  driver.MemFree(address_of(memory));
  driver.CtxPopCurrent(&context);
}

void free_queue(void* queue) {
  CUcontext context = nullptr;
  const CudaDriver& driver = cuda_driver();
  auto* const stream = static_cast<CUstream>(queue);
  if (driver.StreamGetCtx(stream, &context) != CUDA_SUCCESS || driver.CtxPushCurrent(context) != CUDA_SUCCESS) return;
  driver.StreamDestroy(stream);
  driver.CtxPopCurrent(&context);
}

// With its context, which an event does not tell.
struct Event {
  CUcontext context = nullptr;
  CUevent event = nullptr;

  ~Event() {
    const CudaDriver& driver = cuda_driver();
    if (event == nullptr || driver.CtxPushCurrent(context) != CUDA_SUCCESS) return;
    driver.EventDestroy(event);
    driver.CtxPopCurrent(&context);
  }
};

CUevent event_of(const DeviceObject& event) { return static_cast<const Event*>(event.get())->event; }

struct LaunchConfig {
  CUlaunchAttribute cluster{};
  CUlaunchConfig all{};

  LaunchConfig(const KernelInfo& info, const Launch& launch, Queue queue) {
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim.x = static_cast<unsigned>(launch.cluster);
    cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
    all.gridDimX = static_cast<unsigned>(launch.blocks);
    all.gridDimY = all.gridDimZ = 1;
    all.blockDimX = static_cast<unsigned>(info.threads);
    all.blockDimY = all.blockDimZ = 1;
    all.sharedMemBytes = static_cast<unsigned>(launch.shared_bytes);
    all.hStream = stream_of(queue);
    all.attrs = &cluster;
    all.numAttrs = launch.cluster > 1 ? 1 : 0;  // devices before sm_90 know no clusters
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) {
    const CUdevice device = cuda_device(ordinal);
    read_properties(device);
    // Never released: memory may outlive this, and the runtime keeps it too.
    check_cuda(driver_.DevicePrimaryCtxRetain(&context_, device), "starting " + properties_.model);
    load_kernels();
  }

  ~CudaDevice() override {
    if (driver_.CtxPushCurrent(context_) != CUDA_SUCCESS) return;
    driver_.CtxSynchronize();  // a call that launched a kernel may have returned before it ran
    driver_.ModuleUnload(module_);
    driver_.CtxPopCurrent(&context_);
  }

  std::string_view name() const override { return "gpu"; }
  DeviceType type() const override { return DeviceType::kCuda; }
  const DeviceProperties& properties() const override { return properties_; }

  Buffer allocate(std::size_t bytes) const override {
    const CurrentContext current(context_);
    CUdeviceptr memory = 0;
    // CUDA refuses to allocate nothing.
    check_cuda(driver_.MemAlloc(&memory, bytes > 0 ? bytes : 1), "allocating " + std::to_string(bytes) + " bytes");
    return {reinterpret_cast<void*>(memory), free_memory};
  }

  void copy_to_device(void* to, const void* from, std::size_t bytes, Queue queue) override {
    copy(to, from, bytes, queue);
    // Of pageable memory NVIDIA says only that cuMemcpyAsync "might be synchronous" (CUDA Driver API, API
    // synchronization behavior). cuMemcpyHtoD would have read it, but stages it in a stream that other streams need not
    // wait for.
    if (bytes > 0 && !is_page_locked(from)) synchronize(queue);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Queue queue) override {
    copy(to, from, bytes, queue);
    synchronize(queue);
  }
  void copy_on_device(void* to, const void* from, std::size_t bytes, Queue queue) override {
    copy(to, from, bytes, queue);
  }

  bool has_room(Kernel kernel, const Launch& launch) const override {
    if (launch.shared_bytes > shared_bytes_[static_cast<std::size_t>(kernel)]) return false;
    if (launch.cluster == 1) return true;
    if (launch.cluster > properties_.blocks_per_cluster) return false;
    const CurrentContext current(context_);
    const LaunchConfig config(info_of(kernel), launch, {});
    int clusters = 0;
    const CUresult asked =
        driver_.OccupancyMaxActiveClusters(&clusters, functions_[static_cast<std::size_t>(kernel)], &config.all);
    return asked == CUDA_SUCCESS && clusters > 0;
  }

  void launch(Kernel kernel, const Launch& launch, const void* arguments, Queue queue) override {
    if (launch.blocks == 0) return;
    const KernelInfo& info = info_of(kernel);
    if (launch.blocks > std::numeric_limits<std::int32_t>::max()) {
      throw std::runtime_error(std::string(info.name) + ": got " + std::to_string(launch.blocks) +
                               " blocks, expected fewer than 2^31");
    }
    const CurrentContext current(context_);
    const LaunchConfig config(info, launch, queue);
    // The driver copies what these point to.
    void* parameters[] = {const_cast<void*>(arguments)};
    check_cuda(driver_.LaunchKernelEx(&config.all, functions_[static_cast<std::size_t>(kernel)], parameters, nullptr),
               "the launch of " + std::string(info.name));
  }

  DeviceObject make_queue() const override {
    const CurrentContext current(context_);
    CUstream stream = nullptr;
    check_cuda(driver_.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "making a queue");
    return {stream, free_queue};
  }
  DeviceObject make_event() const override {
    const CurrentContext current(context_);
    DeviceObject made{new Event, [](void* event) { delete static_cast<Event*>(event); }};
    auto& event = *static_cast<Event*>(made.get());
    event.context = context_;
    check_cuda(driver_.EventCreate(&event.event, CU_EVENT_DISABLE_TIMING), "making an event");
    return made;
  }
  void record(const DeviceObject& event, Queue queue) override {
    const CurrentContext current(context_);
    check_cuda(driver_.EventRecord(event_of(event), stream_of(queue)), "marking a queue");
  }
  void wait_for(const DeviceObject& event, Queue queue) override {
    const CurrentContext current(context_);
    check_cuda(driver_.StreamWaitEvent(stream_of(queue), event_of(event), CU_EVENT_WAIT_DEFAULT), "ordering queues");
  }

  void synchronize(Queue queue) override {
    const CurrentContext current(context_);
    check_cuda(driver_.StreamSynchronize(stream_of(queue)), "waiting for the device");
  }

 private:
  void read_properties(CUdevice device) {
    char model[256] = {};
    check_cuda(driver_.DeviceGetName(model, sizeof model - 1, device), "reading the device's name");
    const auto attribute = [&](CUdevice_attribute which) {
      int value = 0;
      check_cuda(driver_.DeviceGetAttribute(&value, which, device), "reading the device's properties");
      return value;
    };
    properties_.model = model;
    properties_.multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    properties_.compute_capability = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                                     attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    properties_.shared_bytes_per_block =
        static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
    // CUDA C++ Programming Guide, Thread Block Clusters: 8 blocks are supported by every device that has clusters.
    if (attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0) properties_.blocks_per_cluster = 8;
  }

  void load_kernels() {
    const CurrentContext current(context_);
    const CUresult loaded = driver_.ModuleLoadData(&module_, tpce_kernels_image);
    if (loaded == CUDA_ERROR_NO_BINARY_FOR_GPU) {
      const std::string own = std::to_string(properties_.compute_capability);
      throw std::runtime_error("gpu: " + properties_.model + " is of sm_" + own + ", and the kernels are for " +
                               TPCE_CUDA_ARCHITECTURES + "; expected a build with -DTPCE_CUDA_ARCHITECTURES=" + own);
    }
    check_cuda(loaded, "loading the kernels");
    for (int i = 0; i < kKernels; ++i) {
      CUfunction& function = functions_[static_cast<std::size_t>(i)];
      const std::string kernel(kKernelInfos[i].name);
      check_cuda(driver_.ModuleGetFunction(&function, module_, kernel.c_str()), "finding the kernel " + kernel);
      // More than 48 KiB must be asked for. What the kernel itself declares counts too.
      int declared = 0;
      check_cuda(driver_.FuncGetAttribute(&declared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function),
                 "asking " + kernel);
      shared_bytes_[static_cast<std::size_t>(i)] =
          properties_.shared_bytes_per_block - static_cast<std::size_t>(declared);
      check_cuda(driver_.FuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                          static_cast<int>(shared_bytes_[static_cast<std::size_t>(i)])),
                 "giving shared memory to " + kernel);
    }
  }

  // Of host memory. CUDA knows no context of memory that it neither allocated nor registered; what it manages may be on
  // either side.
  bool is_page_locked(const void* memory) const {
    const CurrentContext current(context_);
    CUcontext context = nullptr;
    unsigned is_managed = 0;
    return driver_.PointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address_of(memory)) == CUDA_SUCCESS &&
           driver_.PointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address_of(memory)) ==
               CUDA_SUCCESS &&
           is_managed == 0;
  }

  void copy(void* to, const void* from, std::size_t bytes, Queue queue) const {
    if (bytes == 0) return;
    const CurrentContext current(context_);
    // Addresses say themselves on which side they are.
    check_cuda(driver_.MemcpyAsync(address_of(to), address_of(from), bytes, stream_of(queue)),
               "copying " + std::to_string(bytes) + " bytes");
  }

  const CudaDriver& driver_ = cuda_driver();
  DeviceProperties properties_;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  std::array<CUfunction, kKernels> functions_{};
  std::array<std::size_t, kKernels> shared_bytes_{};  // dynamic, that a launch may ask for
};

}  // namespace

std::unique_ptr<Device> open_cuda_device(int ordinal) { return std::make_unique<CudaDevice>(ordinal); }

}  // namespace tpce::gpu
