// NCCL's calls by its library, found when the program runs.
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "gpu/cuda_driver.h"
#include "gpu/dynamic_library.h"
#include "gpu/nccl.h"

namespace tpce::gpu {
namespace {

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));

// The functions of the library that are used.
#define TPCE_NCCL_FUNCTIONS(X) \
  X(GetVersion)                \
  X(GetErrorString)            \
  X(GetLastError)              \
  X(GetUniqueId)               \
  X(CommInitRankConfig)        \
  X(CommGetAsyncError)         \
  X(CommAbort)                 \
  X(CommFinalize)              \
  X(CommDestroy)               \
  X(GroupStart)                \
  X(GroupEnd)                  \
  X(AllGather)                 \
  X(AllReduce)

struct Library {
#define TPCE_NCCL_MEMBER(name) decltype(&nccl##name) name;
  TPCE_NCCL_FUNCTIONS(TPCE_NCCL_MEMBER)
#undef TPCE_NCCL_MEMBER
};

std::string version_text(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code % 10000 / 100) + "." + std::to_string(code % 100);
}

Library load() {
  // Never closed: the library has threads of its own.
  const DynamicLibrary loaded{.handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL),
                              .name = "nccl: the library",
                              .expected = "NCCL " + version_text(NCCL_VERSION_CODE) + " or later"};
  if (loaded.handle == nullptr) {
    throw std::runtime_error("nccl: the library was not found: " + std::string(dlerror()) + ", expected " +
                             loaded.expected + " where programs are loaded from (LD_LIBRARY_PATH, ldconfig)");
  }
  Library library{};
#define TPCE_NCCL_FIND(name) loaded.find("nccl" #name, library.name);
  TPCE_NCCL_FUNCTIONS(TPCE_NCCL_FIND)
#undef TPCE_NCCL_FIND
  int version = 0;
  // An older one may read more from nccl.h's structures than it knows, and lacks what they ask for.
  if (library.GetVersion(&version) != ncclSuccess || version < NCCL_VERSION_CODE) {
    throw std::runtime_error("nccl: the library is NCCL " + version_text(version) + ", expected " + loaded.expected +
                             ", as this build's nccl.h is");
  }
  return library;
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

class NcclLibrary final : public NcclApi {
 public:
  explicit NcclLibrary(int device) {
    const CudaDriver& driver = cuda_driver();
    // The same context that open_cuda_device() uses. Never released: NCCL may use it until the process ends.
    check_cuda(driver.DevicePrimaryCtxRetain(&context_, cuda_device(device)),
               "starting device " + std::to_string(device));
  }

  NcclId make_id() override {
    ncclUniqueId made;
    check(nccl_.GetUniqueId(&made), "ncclGetUniqueId", nullptr);
    NcclId id;
    std::memcpy(id.bytes.data(), &made, sizeof made);
    return id;
  }

  Comm start(const NcclId& id, std::int64_t rank, std::int64_t size) override {
    ncclUniqueId given;
    std::memcpy(&given, id.bytes.data(), sizeof given);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // a call that waits for a rank that failed could not be ended
    ncclComm_t comm = nullptr;
    // NCCL takes the device of the context that is current.
    check_cuda(cuda_driver().CtxPushCurrent(context_), "using the device");
    const ncclResult_t result =
        nccl_.CommInitRankConfig(&comm, static_cast<int>(size), given, static_cast<int>(rank), &config);
    CUcontext context = nullptr;
    cuda_driver().CtxPopCurrent(&context);
    check(result, "ncclCommInitRankConfig", comm);
    return comm;
  }

  void group_start() override { check(nccl_.GroupStart(), "ncclGroupStart", nullptr); }
  void group_end(Comm comm) override { check(nccl_.GroupEnd(), "ncclGroupEnd", comm); }

  void all_gather(const void* from, void* to, std::size_t bytes, Comm comm, Queue queue) override {
    check(nccl_.AllGather(from, to, bytes, ncclUint8, of(comm), of(queue)), "ncclAllGather", comm);
  }
  void all_reduce(const NcclReduction& reduction, Comm comm, Queue queue) override {
    const ncclDataType_t type = reduction.type == NcclReduction::Type::kUint32 ? ncclUint32 : ncclInt64;
    const ncclRedOp_t operation = reduction.operation == NcclReduction::Operation::kMax ? ncclMax : ncclSum;
    check(nccl_.AllReduce(reduction.from, reduction.to, reduction.count, type, operation, of(comm), of(queue)),
          "ncclAllReduce", comm);
  }

  State state(Comm comm) override {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t asked = nccl_.CommGetAsyncError(of(comm), &found);
    if (asked != ncclSuccess) return {false, words("ncclCommGetAsyncError", asked, comm)};
    if (found == ncclInProgress) return {true, {}};
    return {false, found == ncclSuccess ? "" : words("a collective", found, comm)};
  }

  void abort(Comm comm) noexcept override { nccl_.CommAbort(of(comm)); }

  void finish(Comm comm) noexcept override {
    nccl_.CommFinalize(of(comm));
    // As long as the others take to come here, but a rank that failed may never come.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    ncclResult_t found = ncclInProgress;
    while (nccl_.CommGetAsyncError(of(comm), &found) == ncclSuccess && found == ncclInProgress &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (found == ncclSuccess) {
      nccl_.CommDestroy(of(comm));
    } else {
      nccl_.CommAbort(of(comm));
    }
  }

 private:
  static ncclComm_t of(Comm comm) { return static_cast<ncclComm_t>(comm); }
  static cudaStream_t of(Queue queue) { return static_cast<cudaStream_t>(queue.stream); }

  std::string words(std::string_view what, ncclResult_t result, Comm comm) const {
    std::string text = "nccl: " + std::string(what) + " failed: " + nccl_.GetErrorString(result);
    const char* last = nccl_.GetLastError(of(comm));
    if (last != nullptr && *last != '\0') text += ", " + std::string(last);
    for (char& c : text) {
      if (c == '\n') c = ' ';
    }
    return text;
  }
  void check(ncclResult_t result, std::string_view what, Comm comm) const {
    if (result != ncclSuccess && result != ncclInProgress) throw std::runtime_error(words(what, result, comm));
  }

  const Library& nccl_ = library();
  CUcontext context_ = nullptr;
};

}  // namespace

std::unique_ptr<NcclApi> open_nccl(int device) { return std::make_unique<NcclLibrary>(device); }

}  // namespace tpce::gpu
