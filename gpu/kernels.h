// The one list of kernels. __global__ functions, the host executor's table, tests and the count of instructions are
// made from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gpu/finalize.h"
#include "gpu/fused.h"
#include "gpu/gradient.h"
#include "gpu/merge.h"
#include "gpu/production/log_softmax.h"
#include "gpu/production/softplus_recompute.h"
#include "gpu/reduce.h"
#include "gpu/row_partials.h"
#include "gpu/two_step_merge.h"

// X(name, (body), arguments): (body)(block, arguments) runs a block. The type of the arguments, one for each kernel,
// says how many threads a block has, for how many blocks a multiprocessor's registers must be enough, which limits
// those of a thread (shared memory may hold fewer blocks), and the dynamic shared memory of a block in bytes.
#define TPCE_GPU_KERNELS(X)                                                                  \
  X(row_partials_fp32, (row_partials<float>), RowPartialsArguments<float>)                   \
  X(row_partials_bf16, (row_partials<BFloat16>), RowPartialsArguments<BFloat16>)             \
  X(row_partials_fp16, (row_partials<Float16>), RowPartialsArguments<Float16>)               \
  X(merge_partials, (merge_partials), MergeArguments)                                        \
  X(finalize_rows, (finalize_rows), FinalizeArguments)                                       \
  X(reduce_losses, (reduce_losses), ReduceLossesArguments)                                   \
  X(reduce_squares, (reduce_squares), ReduceSquaresArguments)                                \
  X(gradient_fp32, (gradient<float, float>), GradientArguments<float, float>)                \
  X(gradient_bf16, (gradient<BFloat16, BFloat16>), GradientArguments<BFloat16, BFloat16>)    \
  X(gradient_fp16, (gradient<Float16, Float16>), GradientArguments<Float16, Float16>)        \
  X(gradient_fp32_bf16, (gradient<float, BFloat16>), GradientArguments<float, BFloat16>)     \
  X(gradient_fp32_fp16, (gradient<float, Float16>), GradientArguments<float, Float16>)       \
  X(gradient_fp32_fp64, (gradient<float, double>), GradientArguments<float, double>)         \
  X(gradient_bf16_fp32, (gradient<BFloat16, float>), GradientArguments<BFloat16, float>)     \
  X(gradient_bf16_fp16, (gradient<BFloat16, Float16>), GradientArguments<BFloat16, Float16>) \
  X(gradient_bf16_fp64, (gradient<BFloat16, double>), GradientArguments<BFloat16, double>)   \
  X(gradient_fp16_fp32, (gradient<Float16, float>), GradientArguments<Float16, float>)       \
  X(gradient_fp16_bf16, (gradient<Float16, BFloat16>), GradientArguments<Float16, BFloat16>) \
  X(gradient_fp16_fp64, (gradient<Float16, double>), GradientArguments<Float16, double>)     \
  X(squares_fp32, (squares<float>), SquaresArguments<float>)                                 \
  X(squares_bf16, (squares<BFloat16>), SquaresArguments<BFloat16>)                           \
  X(squares_fp16, (squares<Float16>), SquaresArguments<Float16>)                             \
  X(fused_fp32, (fused<float>), FusedArguments<float>)                                       \
  X(fused_bf16, (fused<BFloat16>), FusedArguments<BFloat16>)                                 \
  X(fused_fp16, (fused<Float16>), FusedArguments<Float16>)                                   \
  X(row_keys, (row_keys), RowKeysArguments)                                                  \
  X(align_digits, (align_digits), AlignDigitsArguments)                                      \
  X(join_rows, (join_rows), JoinRowsArguments)                                               \
  TPCE_GPU_PRODUCTION_KERNELS(X)

// Of gpu/production/, at the list's end.
#define TPCE_GPU_PRODUCTION_KERNELS(X)                                                                              \
  X(row_maximum_fp32, (row_maximum<float>), RowMaximumArguments<float>)                                             \
  X(row_maximum_bf16, (row_maximum<BFloat16>), RowMaximumArguments<BFloat16>)                                       \
  X(row_maximum_fp16, (row_maximum<Float16>), RowMaximumArguments<Float16>)                                         \
  X(all_reduce, (all_reduce), AllReduceArguments)                                                                   \
  X(log_softmax_sum_fp32, (log_softmax_sum<float>), LogSoftmaxSumArguments<float>)                                  \
  X(log_softmax_sum_bf16, (log_softmax_sum<BFloat16>), LogSoftmaxSumArguments<BFloat16>)                            \
  X(log_softmax_sum_fp16, (log_softmax_sum<Float16>), LogSoftmaxSumArguments<Float16>)                              \
  X(log_probabilities_fp32, (log_probabilities<float>), LogProbabilitiesArguments<float>)                           \
  X(log_probabilities_bf16, (log_probabilities<BFloat16>), LogProbabilitiesArguments<BFloat16>)                     \
  X(log_probabilities_fp16, (log_probabilities<Float16>), LogProbabilitiesArguments<Float16>)                       \
  X(log_softmax_loss, (log_softmax_loss), LogSoftmaxLossArguments)                                                  \
  X(log_softmax_gradient_fp32, (log_softmax_gradient<float>), LogSoftmaxGradientArguments<float>)                   \
  X(log_softmax_gradient_bf16, (log_softmax_gradient<BFloat16>), LogSoftmaxGradientArguments<BFloat16>)             \
  X(log_softmax_gradient_fp16, (log_softmax_gradient<Float16>), LogSoftmaxGradientArguments<Float16>)               \
  X(softplus_sums_fp32, (softplus_sums<float>), SoftplusSumsArguments<float>)                                       \
  X(softplus_sums_bf16, (softplus_sums<BFloat16>), SoftplusSumsArguments<BFloat16>)                                 \
  X(softplus_sums_fp16, (softplus_sums<Float16>), SoftplusSumsArguments<Float16>)                                   \
  X(softplus_loss, (softplus_loss), SoftplusLossArguments)                                                          \
  X(softplus_gradient_fp32, (softplus_gradient<float, float>), SoftplusGradientArguments<float, float>)             \
  X(softplus_gradient_bf16, (softplus_gradient<BFloat16, BFloat16>), SoftplusGradientArguments<BFloat16, BFloat16>) \
  X(softplus_gradient_fp16, (softplus_gradient<Float16, Float16>), SoftplusGradientArguments<Float16, Float16>)     \
  X(softplus_gradient_bf16_fp32, (softplus_gradient<BFloat16, float>), SoftplusGradientArguments<BFloat16, float>)  \
  X(softplus_gradient_fp16_fp32, (softplus_gradient<Float16, float>), SoftplusGradientArguments<Float16, float>)

namespace tpce::gpu {

#define TPCE_GPU_ENUMERATOR(name, body, ...) name,
enum class Kernel : int { TPCE_GPU_KERNELS(TPCE_GPU_ENUMERATOR) };
#undef TPCE_GPU_ENUMERATOR

#define TPCE_GPU_ONE(name, body, ...) +1
inline constexpr int kKernels = 0 TPCE_GPU_KERNELS(TPCE_GPU_ONE);
#undef TPCE_GPU_ONE

// The kernel that takes these arguments.
template <class Arguments>
struct KernelOf;
#define TPCE_GPU_KERNEL_OF(name, body, ...)       \
  template <>                                     \
  struct KernelOf<__VA_ARGS__> {                  \
    static constexpr Kernel value = Kernel::name; \
  };
TPCE_GPU_KERNELS(TPCE_GPU_KERNEL_OF)
#undef TPCE_GPU_KERNEL_OF

struct KernelInfo {
  std::string_view name;
  int threads;               // of a block
  int blocks;                // that a multiprocessor's registers are enough for
  std::size_t shared_bytes;  // of a block, dynamic
  std::size_t arguments_bytes;
};

#define TPCE_GPU_INFO(name, body, ...) \
  {#name, __VA_ARGS__::kThreads, __VA_ARGS__::kBlocks, __VA_ARGS__::kSharedBytes, sizeof(__VA_ARGS__)},
inline constexpr KernelInfo kKernelInfos[kKernels] = {TPCE_GPU_KERNELS(TPCE_GPU_INFO)};
#undef TPCE_GPU_INFO

constexpr const KernelInfo& info_of(Kernel kernel) { return kKernelInfos[static_cast<int>(kernel)]; }

}  // namespace tpce::gpu
