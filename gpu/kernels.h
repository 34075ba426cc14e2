// The one list of kernels. __global__ functions, the host executor's table, tests and the count of instructions are
// made from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gpu/row_partials.h"

// X(name, body, arguments): a body is a function template over Block besides; Shape of its arguments' kernel says the
// threads of a block, how many blocks a multiprocessor should hold at the least, and the shared memory in bytes.
#define TPCE_GPU_KERNELS(X)                                                    \
  X(row_partials_fp32, row_partials<float>, RowPartialsArguments<float>)       \
  X(row_partials_bf16, row_partials<BFloat16>, RowPartialsArguments<BFloat16>) \
  X(row_partials_fp16, row_partials<Float16>, RowPartialsArguments<Float16>)

namespace tpce::gpu {

#define TPCE_GPU_ENUMERATOR(name, body, arguments) name,
enum class Kernel : int { TPCE_GPU_KERNELS(TPCE_GPU_ENUMERATOR) };
#undef TPCE_GPU_ENUMERATOR

#define TPCE_GPU_ONE(name, body, arguments) +1
inline constexpr int kKernels = 0 TPCE_GPU_KERNELS(TPCE_GPU_ONE);
#undef TPCE_GPU_ONE

struct KernelInfo {
  std::string_view name;
  int threads;               // of a block
  int blocks;                // of a multiprocessor, at the least
  std::size_t shared_bytes;  // of a block, dynamic
  std::size_t arguments_bytes;
};

inline constexpr KernelInfo kKernelInfos[kKernels] = {
#define TPCE_GPU_INFO(name, body, arguments) \
  {#name, arguments::kThreads, arguments::kBlocks, arguments::kSharedBytes, sizeof(arguments)},
    TPCE_GPU_KERNELS(TPCE_GPU_INFO)
#undef TPCE_GPU_INFO
};

constexpr const KernelInfo& info_of(Kernel kernel) { return kKernelInfos[static_cast<int>(kernel)]; }

}  // namespace tpce::gpu
