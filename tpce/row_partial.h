// RowPartial: what some of the classes of one row add to its loss (docs/numerics.md, section 4). Partials of shards are
// made without knowledge of one another and merge in any order and grouping with the same bits.
#pragma once

#include "tpce/binned_sum.h"
#include "tpce/dtype.h"
#include "tpce/exp_split.h"

namespace tpce {

// Beyond 2^30 neighbouring fp32 logits lie 128 apart, so that only ties with the maximum carry mass.
inline constexpr float kHugeLogit = 0x1p30f;

struct RowPartial {
  static constexpr std::uint32_t kTargetHere = 1;   // target_logit holds the target's logit, which may be -inf
  static constexpr std::uint32_t kTargetTwice = 2;  // two shards claimed the target
  static constexpr std::uint32_t kNotFinite = 4;    // NaN or +inf seen, the target included: the rest is empty
  static constexpr std::uint32_t kIgnored = 8;      // the label is ignore_index: the logits were not read
  static constexpr std::uint32_t kBadLabel = 16;    // the label is no class: the logits were not read

  // Largest non-target logit, -0 stored as +0; -inf is the empty class: no non-target above -inf.
  float max_logit = -bit_cast<float>(std::uint32_t{0x7f800000});
  float target_logit = 0.0f;
  // |max_logit| <= 2^30 (grid): binned sum of the exponentials, top bin that of max_logit. Beyond (huge): d0 counts the
  // values equal to max_logit.
  Digits digits;
  std::uint32_t flags = 0;

  TPCE_HOST_DEVICE static RowPartial only_flags(std::uint32_t flags) {
    RowPartial partial;
    partial.flags = flags;
    return partial;
  }

  friend bool operator==(const RowPartial& a, const RowPartial& b) {
    return bit_cast<std::uint32_t>(a.max_logit) == bit_cast<std::uint32_t>(b.max_logit) &&
           bit_cast<std::uint32_t>(a.target_logit) == bit_cast<std::uint32_t>(b.target_logit) && a.digits == b.digits &&
           a.flags == b.flags;
  }
};

enum class RowClass : std::uint8_t { kEmpty, kHugeNegative, kGrid, kHugePositive };

TPCE_HOST_DEVICE inline RowClass class_of(float max_logit) {
  if (max_logit == -bit_cast<float>(std::uint32_t{0x7f800000})) return RowClass::kEmpty;
  if (max_logit < -kHugeLogit) return RowClass::kHugeNegative;
  return max_logit <= kHugeLogit ? RowClass::kGrid : RowClass::kHugePositive;
}

// Top bin of a grid row.
TPCE_ALWAYS_INLINE std::int32_t bin_of_logit(float max_logit) { return bin_of_exponent(exp_split(max_logit).exponent); }

// NaN or +inf, in one comparison that no max instruction can blur.
TPCE_HOST_DEVICE inline bool is_nan_or_positive_infinity(float x) {
  return !(x < bit_cast<float>(std::uint32_t{0x7f800000}));
}

// The order of fp32 values as the order of unsigned integers, so that a transport can take the maximum of integers.
// The empty class, -inf, maps to 0. max_logit is never NaN nor -0.
TPCE_HOST_DEVICE inline std::uint32_t ordered_key(float max_logit) {
  const std::uint32_t bits = bit_cast<std::uint32_t>(max_logit);
  const std::uint32_t key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return key - 0x007fffffu;  // the key of -inf
}

// The digits that a partial adds to a row whose maximum is max_logit >= partial.max_logit.
TPCE_HOST_DEVICE inline Digits digits_below(const RowPartial& partial, float max_logit) {
  if (partial.max_logit == max_logit) return partial.digits;
  if (class_of(max_logit) != RowClass::kGrid || class_of(partial.max_logit) != RowClass::kGrid) return {};
  return raised(partial.digits, std::int64_t{bin_of_logit(max_logit)} - bin_of_logit(partial.max_logit));
}

TPCE_HOST_DEVICE inline void merge(RowPartial& into, const RowPartial& from) {
  constexpr std::uint32_t kHere = RowPartial::kTargetHere;
  if ((into.flags & from.flags & kHere) != 0) into.flags |= RowPartial::kTargetTwice;
  if ((from.flags & kHere) != 0) into.target_logit = from.target_logit;
  into.flags |= from.flags;
  if ((into.flags & (RowPartial::kNotFinite | RowPartial::kTargetTwice)) != 0) {
    // Nothing of such a row is used, and a fixed state keeps merge commutative.
    into = RowPartial::only_flags(into.flags);
    return;
  }
  const float max_logit = into.max_logit > from.max_logit ? into.max_logit : from.max_logit;
  into.digits = digits_below(into, max_logit);
  add(into.digits, digits_below(from, max_logit));
  into.max_logit = max_logit;
}

// The partial of classes [0, count) of a row; target < 0 or target >= count means that the target is not among them.
// This is the definition that every fast kernel is compared with: two plain passes, nothing skipped.
template <class T>
TPCE_HOST_DEVICE inline RowPartial row_partial(const T* logits, std::int64_t count, std::int64_t target) {
  RowPartial partial;
  bool not_finite = false;
  for (std::int64_t j = 0; j < count; ++j) {
    const float x = widen(logits[j]);
    if (is_nan_or_positive_infinity(x)) not_finite = true;
    if (j != target && x > partial.max_logit) partial.max_logit = x + 0.0f;  // -0 becomes +0
  }
  if (target >= 0 && target < count) {
    partial.flags |= RowPartial::kTargetHere;
    partial.target_logit = widen(logits[target]) + 0.0f;
  }
  if (not_finite) return RowPartial::only_flags(partial.flags | RowPartial::kNotFinite);

  const RowClass row_class = class_of(partial.max_logit);
  if (row_class == RowClass::kEmpty) return partial;
  const std::int32_t bin = row_class == RowClass::kGrid ? bin_of_logit(partial.max_logit) : 0;
  for (std::int64_t j = 0; j < count; ++j) {
    if (j == target) continue;
    const float x = widen(logits[j]);
    if (row_class != RowClass::kGrid) {
      if (x == partial.max_logit) partial.digits.d0 += 1;
    } else if (x >= -kHugeLogit) {
      const ExpSplit y = exp_split(x);
      add(partial.digits, digits_of(y.mantissa, y.exponent, bin));
    }
  }
  return partial;
}

}  // namespace tpce
