// From a merged RowPartial to loss, lse and gradients of one row, in fp64 with functions of our own (docs/numerics.md,
// section 5).
#pragma once

#include "tpce/fp64_math.h"
#include "tpce/row_partial.h"

namespace tpce {

enum class RowStatus : std::uint32_t {
  kValid,
  kIgnored,        // the label is ignore_index: loss and gradients are 0
  kNotFinite,      // NaN or +inf in the row, or every logit -inf: loss and gradients are NaN
  kTargetMissing,  // no shard holds the target: an error
  kTargetTwice,    // two shards hold it: an error
  kBadLabel,       // the label is no class: an error
};

// All that backward needs of a row, beside its logits: 24 bytes.
struct SavedRow {
  double non_target_probability = 0.0;  // p_nt; 0 where no other class has mass
  double sum = 0.0;                     // S: sum of exponentials in units of Q_b (grid), or the number of ties (huge)
  float max_logit = 0.0f;
  RowStatus status = RowStatus::kIgnored;
};
static_assert(sizeof(SavedRow) <= 32);

struct FinalRow {
  double nll = 0.0;
  double lse = 0.0;
  SavedRow saved;
};

TPCE_HOST_DEVICE inline FinalRow finalize(const RowPartial& partial) {
  const double nan = bit_cast<double>(std::uint64_t{0x7ff8000000000000});
  const float infinity = bit_cast<float>(std::uint32_t{0x7f800000});
  const double target_logit = partial.target_logit;
  FinalRow row;
  row.saved.max_logit = partial.max_logit;
  if ((partial.flags & RowPartial::kIgnored) != 0) return row;
  const RowClass row_class = class_of(partial.max_logit);
  const bool nothing = row_class == RowClass::kEmpty && partial.target_logit == -infinity;
  if ((partial.flags & RowPartial::kBadLabel) != 0) {
    row.saved.status = RowStatus::kBadLabel;
  } else if ((partial.flags & RowPartial::kTargetTwice) != 0) {
    row.saved.status = RowStatus::kTargetTwice;
  } else if ((partial.flags & RowPartial::kTargetHere) == 0) {
    row.saved.status = RowStatus::kTargetMissing;
  } else if ((partial.flags & RowPartial::kNotFinite) != 0 || nothing) {
    row.saved.status = RowStatus::kNotFinite;
  } else {
    row.saved.status = RowStatus::kValid;
  }
  if (row.saved.status != RowStatus::kValid) {
    row.nll = nan;
    row.lse = nan;
    return row;
  }
  if (row_class == RowClass::kEmpty) {  // the target is alone: loss +0
    row.lse = target_logit;
    return row;
  }

  double margin;      // m = z_t - a
  double non_target;  // a, the logsumexp of the others
  if (row_class == RowClass::kGrid) {
    row.saved.sum = value_of(partial.digits);
    const double b = static_cast<double>(kBinBits) * bin_of_logit(partial.max_logit);
    const double log_sum = log_fp64(row.saved.sum);
    const double u =
        fused_multiply_add(-b, fp64_constants::kLn2Low, fused_multiply_add(-b, fp64_constants::kLn2High, target_logit));
    margin = u - log_sum;
    non_target =
        fused_multiply_add(b, fp64_constants::kLn2High, fused_multiply_add(b, fp64_constants::kLn2Low, log_sum));
  } else {
    row.saved.sum = static_cast<double>(partial.digits.d0);
    const double max_logit = partial.max_logit;
    const double log_sum = log_fp64(row.saved.sum);
    margin = (target_logit - max_logit) - log_sum;
    non_target = max_logit + log_sum;
  }
  if (partial.target_logit == -infinity) {
    row.nll = infinity;
    row.lse = non_target + 0.0;
    row.saved.non_target_probability = 1.0;
    return row;
  }
  const double e = exp_fp64(margin >= 0.0 ? -margin : margin);
  const double softplus_rest = log1p_fp64(e);
  row.nll = (margin < 0.0 ? -margin : 0.0) + softplus_rest;
  row.lse = non_target + ((margin > 0.0 ? margin : 0.0) + softplus_rest) + 0.0;
  row.saved.non_target_probability = margin >= 0.0 ? e / (1.0 + e) : 1.0 / (1.0 + e);
  return row;
}

// Gradient of one row for the upstream gradient g of its loss. A g that is not finite makes the whole row NaN.
struct RowGradient {
  enum class Kind : std::uint8_t { kZero, kNan, kGrid, kHuge };
  Kind kind = Kind::kZero;
  float target = 0.0f;     // dz_t
  float factor = 0.0f;     // grid: q, |q| in [0.5, 1]; huge: dz_j of the ties
  std::int64_t shift = 0;  // grid: k - B
  float max_logit = 0.0f;
};

TPCE_HOST_DEVICE inline RowGradient row_gradient(const SavedRow& saved, double g) {
  RowGradient gradient;
  gradient.max_logit = saved.max_logit;
  if (saved.status == RowStatus::kIgnored) return gradient;
  if (saved.status != RowStatus::kValid || g - g != 0.0) {
    gradient.kind = RowGradient::Kind::kNan;
    gradient.target = canonical_nan();
    return gradient;
  }
  const double mass = g * saved.non_target_probability;
  gradient.target = static_cast<float>(-mass) + 0.0f;
  if (mass == 0.0) return gradient;
  const double scale = mass / saved.sum;
  if (class_of(saved.max_logit) != RowClass::kGrid) {
    gradient.kind = RowGradient::Kind::kHuge;
    gradient.factor = static_cast<float>(scale) + 0.0f;
    return gradient;
  }
  if (scale == 0.0) return gradient;
  // scale = q * 2^k; a subnormal scale is brought into the normal range first, which is exact. One that overflows, as S
  // may be as small as 0.35, is formed again of a smaller mass: the same quotient but for its exponent.
  const double magnitude = scale < 0.0 ? -scale : scale;
  const bool subnormal = magnitude < 0x1p-1022;
  const bool overflow = magnitude > 0x1.fffffffffffffp1023;
  const double normal = subnormal ? scale * 0x1p64 : (overflow ? mass * 0x1p-64 / saved.sum : scale);
  const std::uint64_t bits = bit_cast<std::uint64_t>(normal);
  const std::int64_t k =
      static_cast<std::int64_t>((bits >> 52) & 0x7ffu) - 1022 - (subnormal ? 64 : 0) + (overflow ? 64 : 0);
  gradient.kind = RowGradient::Kind::kGrid;
  gradient.factor = static_cast<float>(bit_cast<double>((bits & 0x800fffffffffffffu) | 0x3fe0000000000000u));
  gradient.shift = k - std::int64_t{kBinBits} * bin_of_logit(saved.max_logit);
  return gradient;
}

// dz_j of a class that is not the target, in fp32; zeros are +0.
TPCE_HOST_DEVICE inline float non_target_gradient(const RowGradient& gradient, float logit) {
  switch (gradient.kind) {
    case RowGradient::Kind::kNan:
      return canonical_nan();
    case RowGradient::Kind::kHuge:
      return logit == gradient.max_logit ? gradient.factor : 0.0f;
    case RowGradient::Kind::kGrid: {
      if (!(logit >= -kHugeLogit)) return 0.0f;
      const ExpSplit y = exp_split(logit);
      std::int64_t exponent = y.exponent + gradient.shift;
      exponent = exponent < -300 ? -300 : (exponent > 300 ? 300 : exponent);
      const double power = bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
      return static_cast<float>(static_cast<double>(y.mantissa * gradient.factor) * power) + 0.0f;
    }
    case RowGradient::Kind::kZero:
      break;
  }
  return 0.0f;
}

}  // namespace tpce
