// A stand-in for NCCL's library, built as libnccl.so.2: one rank, whose collectives copy at once, and a log of what was
// asked. Everything asked of a communicator stays in progress until that was asked once. FAKE_NCCL makes it fail:
// "old", "no id", "start", "call", "later".
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

struct ncclComm {
  bool in_progress = true;
};

namespace {

bool asked(std::string_view failure) {
  const char* set = std::getenv("FAKE_NCCL");
  return set != nullptr && set == failure;
}

std::string& log() {
  static std::string lines;
  return lines;
}

std::size_t bytes_of(ncclDataType_t type) { return type == ncclUint8 ? 1 : type == ncclUint32 ? 4 : 8; }

}  // namespace

extern "C" {

// What was called since the last call of this.
__attribute__((visibility("default"))) const char* fake_nccl_log() {
  static std::string last;
  last.swap(log());
  log().clear();
  return last.c_str();
}

ncclResult_t ncclGetVersion(int* version) { return *version = asked("old") ? 21403 : NCCL_VERSION_CODE, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "words of the fake"; }
const char* ncclGetLastError(ncclComm_t) { return asked("call") ? "and more\nof them" : ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 'u', sizeof *id);
  return asked("no id") ? ncclSystemError : ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (asked("start")) return ncclSystemError;
  log() += "start " + std::to_string(rank) + " of " + std::to_string(size) + " by " + id.internal[127] +
           (config->blocking == 0 ? "" : ", blocking") + '\n';
  *comm = new ncclComm;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const bool first = comm->in_progress;
  comm->in_progress = false;
  *result = first ? ncclInProgress : asked("later") ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  log() += "abort\n";
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  log() += "finalize\n";
  comm->in_progress = true;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  log() += comm->in_progress ? "destroyed too early\n" : "destroy\n";
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() { return log() += "{\n", ncclSuccess; }
ncclResult_t ncclGroupEnd() { return log() += "}\n", ncclInProgress; }
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t,
                           cudaStream_t) {
  if (asked("call")) return ncclInvalidArgument;
  log() += "gather " + std::to_string(count * bytes_of(type)) + '\n';
  std::memcpy(to, from, count * bytes_of(type));
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t, cudaStream_t) {
  log() += std::string(operation == ncclMax   ? "max"
                       : operation == ncclSum ? "sum"
                                              : "other") +
           (type == ncclUint32  ? " uint32 "
            : type == ncclInt64 ? " int64 "
                                : " other ") +
           std::to_string(count) + '\n';
  std::memcpy(to, from, count * bytes_of(type));
  return ncclSuccess;
}

}  // extern "C"
