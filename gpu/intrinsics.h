// Instructions that C++ has no operator for, each with the meaning of its plain form below. Together with block.h the
// one place in gpu/ that asks what machine it is compiled for.
#pragma once

#include <cstdint>

#include "tpce/dtype.h"
#include "tpce/platform.h"

#if defined(__CUDACC__)
#define TPCE_DEVICE __device__
#define TPCE_DEVICE_INLINE __device__ __forceinline__
#define TPCE_UNROLLED _Pragma("unroll")
#define TPCE_ROLLED _Pragma("unroll 1")
#else
#define TPCE_DEVICE
#define TPCE_DEVICE_INLINE __attribute__((always_inline)) inline
// Of the for loop that follows, on the device.
#define TPCE_UNROLLED
#define TPCE_ROLLED
#endif

namespace tpce::gpu {

// 16 bytes, as one load or store takes them.
struct alignas(16) Words4 {
  std::uint32_t word[4];
};

// RN of each operation by itself: a compiler cannot join two of them to one that rounds once.
TPCE_DEVICE_INLINE float add_rn(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(x, y);
#else
  return x + y;
#endif
}
TPCE_DEVICE_INLINE float subtract_rn(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(x, y);
#else
  return x - y;
#endif
}
TPCE_DEVICE_INLINE float multiply_rn(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(x, y);
#else
  return x * y;
#endif
}

// The larger of two numbers; y where x is NaN.
TPCE_DEVICE_INLINE float larger_of(float x, float y) {
#if defined(__CUDA_ARCH__)
  return fmaxf(x, y);
#else
  return x > y ? x : y;
#endif
}

// The exponential and the quotient of the production kernels, as a compiler of tensor programs takes them from the
// hardware: within 2 + |1.173 x| and 2 ulp by NVIDIA's documents. The host has none of the two, and stands in with its
// C library's exp and a rounded division: so results differ between the two, and between C libraries, in the last
// places. No canonical result comes from here.
TPCE_DEVICE_INLINE float hardware_exp(float x) {
#if defined(__CUDA_ARCH__)
  return __expf(x);
#else
  return std::exp(x);
#endif
}
TPCE_DEVICE_INLINE float hardware_quotient(float x, float y) {
#if defined(__CUDA_ARCH__)
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
  return quotient;
#else
  return x / y;
#endif
}

namespace intrinsics_detail {

template <class T>
TPCE_DEVICE_INLINE T larger(T a, T b) {
  return a > b ? a : b;
}

// The largest of the low halves and the largest of the high halves.
template <class Half>
TPCE_DEVICE_INLINE std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) {
  const auto high = static_cast<std::uint16_t>(larger(static_cast<Half>(a >> 16), static_cast<Half>(b >> 16)));
  const auto low = static_cast<std::uint16_t>(larger(static_cast<Half>(a), static_cast<Half>(b)));
  return std::uint32_t{high} << 16 | low;
}

}  // namespace intrinsics_detail

// Largest of three, as signed and as unsigned integers, of 32 bits or of each half. DPX instructions from sm_90 on.
TPCE_DEVICE_INLINE std::uint32_t max3_s32(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__vimax3_s32(static_cast<int>(a), static_cast<int>(b), static_cast<int>(c)));
#else
  using intrinsics_detail::larger;
  return static_cast<std::uint32_t>(
      larger(larger(static_cast<std::int32_t>(a), static_cast<std::int32_t>(b)), static_cast<std::int32_t>(c)));
#endif
}
TPCE_DEVICE_INLINE std::uint32_t max3_u32(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#if defined(__CUDA_ARCH__)
  return __vimax3_u32(a, b, c);
#else
  using intrinsics_detail::larger;
  return larger(larger(a, b), c);
#endif
}
TPCE_DEVICE_INLINE std::uint32_t max3_s16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#if defined(__CUDA_ARCH__)
  return __vimax3_s16x2(a, b, c);
#else
  using intrinsics_detail::larger_halves;
  return larger_halves<std::int16_t>(larger_halves<std::int16_t>(a, b), c);
#endif
}
TPCE_DEVICE_INLINE std::uint32_t max3_u16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#if defined(__CUDA_ARCH__)
  return __vimax3_u16x2(a, b, c);
#else
  using intrinsics_detail::larger_halves;
  return larger_halves<std::uint16_t>(larger_halves<std::uint16_t>(a, b), c);
#endif
}

// The low and the high half of a word, widened.
TPCE_DEVICE_INLINE float widen_low(BFloat16, std::uint32_t word) { return bit_cast<float>(word << 16); }
TPCE_DEVICE_INLINE float widen_high(BFloat16, std::uint32_t word) { return bit_cast<float>(word & 0xffff0000u); }
TPCE_DEVICE_INLINE float widen_low(Float16, std::uint32_t word) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(x) : "r"(word));
  return x;
#else
  return widen(Float16{static_cast<std::uint16_t>(word)});
#endif
}
TPCE_DEVICE_INLINE float widen_high(Float16, std::uint32_t word) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(x) : "r"(word));
  return x;
#else
  return widen(Float16{static_cast<std::uint16_t>(word >> 16)});
#endif
}

// Elements from there to the next 16 aligned bytes.
template <class T>
TPCE_DEVICE_INLINE std::int64_t elements_to_aligned(const T* first) {
  const std::uintptr_t beyond = reinterpret_cast<std::uintptr_t>(first) % 16;
  return static_cast<std::int64_t>((16 - beyond) % 16 / sizeof(T));
}

TPCE_DEVICE_INLINE Words4 load_16(const void* from) { return *static_cast<const Words4*>(from); }

// Two numbers, rounded to 16 bits each as round_to() does, the first in the low half. Neither is NaN, and none rounds
// to zero in bf16.
TPCE_DEVICE_INLINE std::uint32_t round_pair(BFloat16, float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  BFloat16 a;
  BFloat16 b;
  round_to(low, &a);
  round_to(high, &b);
  return std::uint32_t{b.bits} << 16 | a.bits;
#endif
}
TPCE_DEVICE_INLINE std::uint32_t round_pair(Float16, float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  asm("add.rn.f16x2 %0, %0, %1;" : "+r"(word) : "r"(0u));  // -0 + +0 is +0
  return word;
#else
  Float16 a;
  Float16 b;
  round_to(low, &a);
  round_to(high, &b);
  return std::uint32_t{b.bits} << 16 | a.bits;
#endif
}

// One number, rounded as round_pair() rounds.
TPCE_DEVICE_INLINE float round_one(float, float x) { return x; }
template <class Half>
TPCE_DEVICE_INLINE Half round_one(Half, float x) {
  return Half{static_cast<std::uint16_t>(round_pair(Half{}, x, x))};
}

// Stores kCount numbers, rounded as round_pair() takes them, where is_store_aligned().
template <int kCount, class Out>
TPCE_DEVICE_INLINE bool is_store_aligned(const Out* out) {
  constexpr std::uintptr_t kBytes = kCount * sizeof(Out) < 16 ? kCount * sizeof(Out) : 16;
  return reinterpret_cast<std::uintptr_t>(out) % kBytes == 0;
}
template <int kCount, class Out>
TPCE_DEVICE_INLINE void store_rounded(const float (&numbers)[kCount], Out* out) {
  if constexpr (sizeof(Out) == 2) {
    struct alignas(kCount * 2) Words {
      std::uint32_t word[kCount / 2];
    } words;
    TPCE_UNROLLED for (int i = 0; i < kCount / 2; ++i) {
      words.word[i] = round_pair(Out{}, numbers[2 * i], numbers[2 * i + 1]);
    }
    *reinterpret_cast<Words*>(out) = words;
  } else {
    constexpr int kAtOnce = 16 / sizeof(Out);
    struct alignas(16) Numbers {
      Out number[kAtOnce];
    };
    TPCE_UNROLLED for (int i = 0; i < kCount; i += kAtOnce) {
      Numbers some;
      TPCE_UNROLLED for (int k = 0; k < kAtOnce; ++k) some.number[k] = static_cast<Out>(numbers[i + k]);
      *reinterpret_cast<Numbers*>(out + i) = some;
    }
  }
}

}  // namespace tpce::gpu
