// The binned sum as one lane of a SIMD register, or one GPU thread, computes it: fp32 and uint32 only, the same digits
// as digits_of() (docs/numerics.md, section 3, "In a SIMD register or a GPU thread"). Vector kernels repeat these steps
// with vector types; tests/tpce/register_form_test.cc ties them to the definition.
//
//   precondition  |x| < 2^16; elsewhere the definition is used
//   operations    9 FMA, 8 additions and 4 integer additions an element for three digits
#pragma once

#include "tpce/binned_sum.h"
#include "tpce/exp_split.h"

namespace tpce {

// Constants of one top bin b, |23 b| < 2^22.
struct RegisterBin {
  // Folds the scale 1 / Q_b into the rounding constant. No x with |x| < 2^16 makes x * kLog2e a tie, so the parity that
  // 23 b adds cannot turn a rounding: kLog2e is an odd multiple of 2^-23, and a half-integer product needs |x| >= 2^22.
  float magic;
  // Values below are raised to this one, whose digits are zero, so that adding the exponent to the bits of p cannot
  // wrap. For the forward digits alone: in a gradient it would be wrong.
  float clamp;
};

TPCE_HOST_DEVICE inline RegisterBin register_bin(std::int32_t b) {
  constexpr float kLn2 = 0x1.62e43p-1f;
  return {exp_split_constants::kRoundMagic - static_cast<float>(kBinBits * b),
          static_cast<float>(kBinBits * (b + 1)) * kLn2 - 75.0f};
}

// exp(x) / Q_b. n - 23 b must lie in [-125, 126], which the clamp and b >= b(n) see to.
TPCE_HOST_DEVICE inline float register_exp(float x, const RegisterBin& bin) {
  using namespace exp_split_constants;
  const float t = fused_multiply_add(x, kLog2e, bin.magic);
  const float n = t - bin.magic;
  float f = fused_multiply_add(x, kLog2e, -n);
  f = fused_multiply_add(x, kLog2eRest, f);
  return bit_cast<float>(bit_cast<std::uint32_t>(exp2_polynomial(f)) + (bit_cast<std::uint32_t>(t) << 23));
}

// Digits of up to kCapacity values, each biased by the bits of its rounding constant, modulo 2^32.
struct RegisterLane {
  // Digits reach 2^22 in magnitude, and 512 * 2^22 is 2^31: one more would not fit the sign-extension of flush().
  static constexpr std::uint32_t kCapacity = 511;
  // Each rounds what is left to multiples of its unit in the last place: Q_b, Q_(b-1), Q_(b-2) in units of Q_b.
  static constexpr float kMagic0 = 0x1.8p23f;
  static constexpr float kMagic1 = 1.5f;
  static constexpr float kMagic2 = 0x1.8p-23f;

  std::uint32_t accumulator0 = 0;
  std::uint32_t accumulator1 = 0;
  std::uint32_t accumulator2 = 0;
  std::uint32_t count = 0;
};

// How many trailing digits can be nonzero where the largest value of a block has top bin block_bin <= row_bin: 3, 2, 1,
// or 0, where the block needs no exp at all.
TPCE_HOST_DEVICE inline int digits_needed(std::int32_t block_bin, std::int32_t row_bin) {
  const std::int64_t below = std::int64_t{row_bin} - block_bin;
  return below >= 3 ? 0 : 3 - static_cast<int>(below);
}

// Adds y, a value of register_exp(), whose first 3 - kDigits digits are known to be zero. The accumulators of
// those stay empty, so kDigits may change only between flushes.
template <int kDigits>
TPCE_HOST_DEVICE void add(RegisterLane& lane, float y) {
  static_assert(kDigits >= 1 && kDigits <= 3);
  float r = y;
  if constexpr (kDigits >= 3) {
    const float t = r + RegisterLane::kMagic0;
    lane.accumulator0 += bit_cast<std::uint32_t>(t);
    r = r - (t - RegisterLane::kMagic0);
  }
  if constexpr (kDigits >= 2) {
    const float t = r + RegisterLane::kMagic1;
    lane.accumulator1 += bit_cast<std::uint32_t>(t);
    r = r - (t - RegisterLane::kMagic1);
  }
  lane.accumulator2 += bit_cast<std::uint32_t>(r + RegisterLane::kMagic2);
  lane.count += 1;
}

// The digits gathered by at most kCapacity additions of kDigits digits; the lane is then empty.
template <int kDigits>
TPCE_HOST_DEVICE Digits flush(RegisterLane& lane) {
  static_assert(kDigits >= 1 && kDigits <= 3);
  const auto digit = [&](std::uint32_t accumulator, float magic) {
    return std::int64_t{static_cast<std::int32_t>(accumulator - lane.count * bit_cast<std::uint32_t>(magic))};
  };
  Digits digits;
  if constexpr (kDigits >= 3) digits.d0 = digit(lane.accumulator0, RegisterLane::kMagic0);
  if constexpr (kDigits >= 2) digits.d1 = digit(lane.accumulator1, RegisterLane::kMagic1);
  digits.d2 = digit(lane.accumulator2, RegisterLane::kMagic2);
  lane = {};
  return digits;
}

}  // namespace tpce
