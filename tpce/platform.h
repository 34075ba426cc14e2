// What differs between the host compiler and nvcc, and nothing else. The numeric headers of this folder (dtype.h,
// exp_split.h, binned_sum.h, fp64_math.h, row_partial.h, row_finalize.h) compile for both and give the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define TPCE_HOST_DEVICE __host__ __device__
#else
#define TPCE_HOST_DEVICE
#endif

// A function whose fused multiply-adds must become those of the instruction set that its caller is compiled for; in
// code of its own it would call libm's.
#define TPCE_ALWAYS_INLINE TPCE_HOST_DEVICE __attribute__((always_inline)) inline

#if defined(__FAST_MATH__)
#error "tpce needs IEEE arithmetic: build without -ffast-math"
#endif

namespace tpce {

// Fused multiply-add, x * y + z rounded once. Never a separate multiply and add: see docs/numerics.md, section 7.
TPCE_HOST_DEVICE inline float fused_multiply_add(float x, float y, float z) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(x, y, z);
#else
  return std::fma(x, y, z);
#endif
}

TPCE_HOST_DEVICE inline double fused_multiply_add(double x, double y, double z) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(x, y, z);
#else
  return std::fma(x, y, z);
#endif
}

// Reinterprets bits. std::bit_cast is constexpr, which nvcc allows in device code only with a flag of its own.
template <class To, class From>
TPCE_HOST_DEVICE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
#if defined(__CUDA_ARCH__)
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
#else
  return std::bit_cast<To>(from);
#endif
}

}  // namespace tpce
