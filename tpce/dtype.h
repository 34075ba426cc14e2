// Element types, widening to fp32 and rounding from fp32. Each conversion is written once, here, and used everywhere.
#pragma once

#include <cstddef>
#include <string_view>

#include "tpce/platform.h"

namespace tpce {

enum class DType : std::uint8_t { kFloat32, kFloat64, kBFloat16, kFloat16 };

// Bit patterns of the two 16-bit formats, kept apart from integers so that a wrong conversion does not compile.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 8;
    case DType::kFloat32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
  }
  return 0;
}

// "fp32", "fp64", "bf16" or "fp16".
constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "fp64";
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
  }
  return "unknown";
}

// The inverse of name_of; throws std::invalid_argument that lists the names.
DType dtype_from_name(std::string_view name);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::kFloat16;
};

// The one NaN of every canonical result. The NaN that an operation makes differs between machines (0/0 is ffc00000 on
// x86, 7fc00000 on aarch64, 7fffffff on NVIDIA GPUs), so a constant is stored instead.
TPCE_HOST_DEVICE inline float canonical_nan() { return bit_cast<float>(std::uint32_t{0x7fc00000}); }

TPCE_HOST_DEVICE inline bool is_nan(float x) { return x != x; }
TPCE_HOST_DEVICE inline bool is_nan(double x) { return x != x; }

// Exact widening to fp32.
TPCE_HOST_DEVICE inline float widen(float x) { return x; }

TPCE_HOST_DEVICE inline float widen(BFloat16 x) { return bit_cast<float>(std::uint32_t{x.bits} << 16); }

TPCE_HOST_DEVICE inline float widen(Float16 x) {
  const std::uint32_t sign = (std::uint32_t{x.bits} & 0x8000u) << 16;
  const std::uint32_t magnitude = std::uint32_t{x.bits} & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity and NaN keep their payload
    return bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude >= 0x0400u) {
    return bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  }
  // Subnormal: magnitude * 2^-24 is exact in fp32.
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return bit_cast<float>(sign | bit_cast<std::uint32_t>(value));
}

// Rounding from fp32, to nearest, ties to even. NaN becomes the canonical NaN of the type (7fc00000, 7fc0, 7e00) and a
// zero of either sign becomes +0, also where a small value rounds to zero (docs/numerics.md, section 5).
TPCE_HOST_DEVICE inline void round_to(float x, float* out) {
  *out = is_nan(x) ? canonical_nan() : x + 0.0f;  // -0 + +0 is +0
}

TPCE_HOST_DEVICE inline void round_to(float x, double* out) {
  float rounded;
  round_to(x, &rounded);
  *out = is_nan(x) ? bit_cast<double>(std::uint64_t{0x7ff8000000000000}) : static_cast<double>(rounded);
}

TPCE_HOST_DEVICE inline void round_to(float x, BFloat16* out) {
  if (is_nan(x)) {
    out->bits = 0x7fc0;
    return;
  }
  const std::uint32_t bits = bit_cast<std::uint32_t>(x);
  // Adding 0x7fff, or 0x8000 where the kept part is odd, carries into the kept part exactly when RN rounds up.
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  out->bits = static_cast<std::uint16_t>((rounded & 0x7fffu) == 0 ? 0 : rounded);
}

TPCE_HOST_DEVICE inline void round_to(float x, Float16* out) {
  if (is_nan(x)) {
    out->bits = 0x7e00;
    return;
  }
  const std::uint32_t bits = bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t rounded;
  if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    rounded = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14: normal in fp16
    rounded = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {
    // Subnormal: the fp32 add rounds |x| to a multiple of 2^-24, since 0.5 has that unit in the last place.
    const float shifted = bit_cast<float>(magnitude) + 0.5f;
    rounded = bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  }
  out->bits = static_cast<std::uint16_t>(rounded == 0 ? 0 : (sign | rounded));
}

}  // namespace tpce
