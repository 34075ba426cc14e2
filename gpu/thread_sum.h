// What one thread gathers of a row's exponentials, in the register form of tpce/register_form.h, each thread under a
// top bin of its own: states of different bins merge exactly, so that no thread waits for another within a row.
#pragma once

#include "gpu/packed.h"
#include "tpce/register_form.h"
#include "tpce/row_partial.h"

namespace tpce::gpu {

// Logits in this open range take the register form; below it, an exponential is nothing beside any row maximum above
// kLowestLogit + kNothingBelow.
inline constexpr float kLowestLogit = -65000.0f;
inline constexpr float kHighestLogit = 65536.0f;
inline constexpr float kNothingBelow = 64.0f;

struct ThreadSum {
  static constexpr std::int32_t kNoBin = -0x7fffffff;
  static constexpr std::uint32_t kNotFinite = 1;
  static constexpr std::uint32_t kSeenLow = 2;     // a finite logit at kLowestLogit or below was left out
  static constexpr std::uint32_t kOutOfRange = 4;  // a logit at kHighestLogit or above: the digits are worth nothing
  static constexpr std::uint32_t kNeedsClamp = 4;  // of needs()

  float max = -bit_cast<float>(std::uint32_t{0x7f800000});
  std::int32_t bin = kNoBin;
  float raise_at = kLowestLogit;  // at most the smallest logit whose top bin is above bin
  float two_at = kLowestLogit;    // values below have at most two digits
  RegisterBin form = register_bin(0);
  float clamp_below = form.clamp;  // a vector whose Extremes::low is above needs no clamp
  // The digits of at most RegisterLane::kCapacity values, those added since the last flush, as int32: the bias of the
  // rounding constants is taken off.
  std::uint32_t digit0 = 0;
  std::uint32_t digit1 = 0;
  std::uint32_t digit2 = 0;
  Digits digits;
  std::uint32_t flags = 0;

  TPCE_DEVICE_INLINE void flush() {
    digits.d0 += static_cast<std::int32_t>(digit0);
    digits.d1 += static_cast<std::int32_t>(digit1);
    digits.d2 += static_cast<std::int32_t>(digit2);
    digit0 = digit1 = digit2 = 0;
  }

  // Sees values of which `largest` is the maximum, or NaN; row_bin is a top bin of the row, or kNoBin.
  TPCE_DEVICE_INLINE bool must_rise(float largest, std::int32_t row_bin) const {
    return !(largest < raise_at) || row_bin > bin;
  }

  TPCE_DEVICE_INLINE void rise(float largest, std::int32_t row_bin) {
    std::int32_t to = row_bin > bin ? row_bin : bin;
    if (is_nan_or_positive_infinity(largest)) {
      flags |= kNotFinite;
    } else if (largest >= kHighestLogit) {
      flags |= kOutOfRange;
    } else if (largest > kLowestLogit) {
      const float n =
          subtract_rn(fused_multiply_add(largest, exp_split_constants::kLog2e, exp_split_constants::kRoundMagic),
                      exp_split_constants::kRoundMagic);
      const std::int32_t own = bin_of_exponent(static_cast<std::int32_t>(n));
      to = own > to ? own : to;
    }
    if (to == bin) return;
    flush();
    if (bin != kNoBin) digits = raised(digits, std::int64_t{to} - bin);
    bin = to;
    form = register_bin(to);
    // Where no value is negative, low says nothing of how small they are: then only a negative clamp lies below.
    clamp_below = form.clamp < 0.0f ? form.clamp : bit_cast<float>(std::uint32_t{0x7f800000});
    // exp_split's n reaches 23 (b + 1) - 1 just above this product; what it is off by is less than kSlack.
    constexpr float kLn2 = 0x1.62e43p-1f;
    raise_at = subtract_rn(multiply_rn(static_cast<float>(kBinBits * (to + 1)) - 1.5f, kLn2), kSlack);
    two_at = subtract_rn(raise_at, kBinWidth);
  }

  // Whether values need all three digits, no clamp, and no rise; not where any is NaN or +inf.
  TPCE_DEVICE_INLINE bool is_plain(const Extremes& extremes, std::int32_t row_bin) const {
    return extremes.max < raise_at && row_bin <= bin && extremes.max >= two_at && extremes.low > clamp_below;
  }

  // The number of digits that values up to `largest` need, and kNeedsClamp.
  TPCE_DEVICE_INLINE std::uint32_t needs(const Extremes& extremes) {
    if (is_nan(extremes.low)) flags |= kNotFinite;
    if (extremes.max <= kLowestLogit && extremes.max > -bit_cast<float>(std::uint32_t{0x7f800000})) flags |= kSeenLow;
    const float above = subtract_rn(extremes.max, two_at);
    const std::uint32_t count = above >= 0.0f ? 3 : above >= -kBinWidth ? 2 : above >= -2 * kBinWidth ? 1 : 0;
    return count | (extremes.low > clamp_below ? 0 : kNeedsClamp);
  }

  // Adds the last kDigits digits of two values, with the bias of the rounding constants.
  template <int kDigits, bool kClamp>
  TPCE_DEVICE_INLINE void add_biased(float x, float y) {
    if constexpr (kClamp) {
      x = x > form.clamp ? x : form.clamp;
      y = y > form.clamp ? y : form.clamp;
    }
    x = register_exp(x, form);
    y = register_exp(y, form);
    if constexpr (kDigits >= 3) add_digit(digit0, RegisterLane::kMagic0, x, y);
    if constexpr (kDigits >= 2) add_digit(digit1, RegisterLane::kMagic1, x, y);
    digit2 += bit_cast<std::uint32_t>(add_rn(x, RegisterLane::kMagic2)) +
              bit_cast<std::uint32_t>(add_rn(y, RegisterLane::kMagic2));
  }

  // Those of 16 bytes of logits.
  template <class T, int kDigits, bool kClamp>
  TPCE_DEVICE_INLINE void add_packed(const Words4& words) {
    TPCE_UNROLLED for (int i = 0; i < 4; i += 1) {
      if constexpr (sizeof(T) == 2) {
        add_biased<kDigits, kClamp>(Packed<T>::low(words.word[i]), Packed<T>::high(words.word[i]));
      } else if (i % 2 == 0) {
        add_biased<kDigits, kClamp>(Packed<T>::value(words.word[i]), Packed<T>::value(words.word[i + 1]));
      }
    }
  }

  // Takes off the bias of `count` values.
  template <int kDigits>
  TPCE_DEVICE_INLINE void take_bias(int count) {
    const auto times = static_cast<std::uint32_t>(count);
    if constexpr (kDigits >= 3) digit0 -= times * bit_cast<std::uint32_t>(RegisterLane::kMagic0);
    if constexpr (kDigits >= 2) digit1 -= times * bit_cast<std::uint32_t>(RegisterLane::kMagic1);
    digit2 -= times * bit_cast<std::uint32_t>(RegisterLane::kMagic2);
  }

 private:
  static constexpr float kSlack = 0.0625f;
  static constexpr float kBinWidth = 15.942385f;  // 23 ln 2

  static TPCE_DEVICE_INLINE void add_digit(std::uint32_t& sum, float magic, float& x, float& y) {
    const float t = add_rn(x, magic);
    const float u = add_rn(y, magic);
    sum += bit_cast<std::uint32_t>(t) + bit_cast<std::uint32_t>(u);
    x = subtract_rn(x, subtract_rn(t, magic));
    y = subtract_rn(y, subtract_rn(u, magic));
  }
};

}  // namespace tpce::gpu
