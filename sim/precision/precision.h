// The precisions that a method can be run in, by name. Each has its arithmetic in a file of its own (fp32.h, bf16.h,
// ...); visit.h brings a name and its arithmetic together.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tpce::sim {

enum class Precision : std::uint8_t { kFp32, kFp64, kBf16, kFp16, kTf32, kBf16Storage, kBf16Exp, kFp32FastExp };

struct PrecisionInfo {
  Precision precision;
  std::string_view name;
  int bits;  // of the significand that + - * / round to, the hidden bit among them: 24 for fp32
  std::string_view summary;

  // The distance from 1 to the next number.
  double epsilon() const { return std::ldexp(1.0, 1 - bits); }
};

// The one list of the precisions, in the order of the enumeration: names, help texts, studies and tests derive from it.
inline constexpr std::array<PrecisionInfo, 8> kPrecisions{{
    {Precision::kFp32, "fp32", 24, "every operation in fp32, exp and log of the C library"},
    {Precision::kFp64, "fp64", 53, "every operation in fp64, exp and log of the C library"},
    {Precision::kBf16, "bf16", 8, "every operation rounded to bf16, exp and log correctly rounded"},
    {Precision::kFp16, "fp16", 11, "every operation rounded to fp16, exp and log correctly rounded"},
    {Precision::kTf32, "tf32", 11, "every operation rounded to 11 bits with fp32's exponents, exp and log too"},
    {Precision::kBf16Storage, "bf16_storage", 24, "logits and gradients rounded to bf16, arithmetic in fp32"},
    {Precision::kBf16Exp, "bf16_exp", 24, "fp32 with every exp rounded to bf16"},
    {Precision::kFp32FastExp, "fp32_fast_exp", 24, "fp32 with exp(x) as exp2 of x log2(e), as __expf"},
}};

constexpr const PrecisionInfo& info_of(Precision precision) { return kPrecisions[static_cast<std::size_t>(precision)]; }

constexpr std::string_view name_of(Precision precision) { return info_of(precision).name; }

// Throws std::invalid_argument that lists the names.
Precision precision_from_name(std::string_view name);

}  // namespace tpce::sim
