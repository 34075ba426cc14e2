// The named baseline of every forward speed: the usual, order-dependent fp32 sum of exponentials in vector lanes, with
// the canonical exp, on the same instruction sets. It is what a fast cross entropy does where nobody asks for equal
// bits.
#pragma once

#include <cstdint>
#include <string_view>

#include "tpce/dtype.h"

namespace tpce::bench {

struct PlainKernels {
  // log(sum(exp(logits[0..count)))) of a row of the given dtype (fp32, bf16 or fp16). two_pass reads the row twice: its
  // maximum, then the sum; online goes by blocks in the first-level cache and rescales the sum where the maximum rises.
  float (*two_pass)(DType dtype, const void* logits, std::int64_t count);
  float (*online)(DType dtype, const void* logits, std::int64_t count);
  // Adds up the row's 32-bit words: a streaming read of the same bytes.
  std::uint32_t (*read)(const void* data, std::int64_t bytes);
};

// Throws std::invalid_argument where the target is not one of simd::targets(), or is the portable one, for which there
// is no plain kernel.
PlainKernels plain_kernels_for(std::string_view target);

}  // namespace tpce::bench
