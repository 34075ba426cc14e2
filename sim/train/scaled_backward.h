// Backward kept out of the subnormal range. It is linear in the gradient of the logits, so a power of two passes
// through it without changing a bit, as long as nothing is subnormal. Once a network knows its rows, their gradients
// fall towards 2^-126, where sums of products would lose their last bits, and where many processors are slower by an
// order of magnitude.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "sim/train/model.h"
#include "tpce/platform.h"

namespace tpce::sim {

// Largest magnitude among the finite values, 0 where there is none.
inline float largest_finite(const View<float>& values) {
  constexpr std::uint32_t kInfinity = 0x7f800000;
  std::uint32_t largest = 0;  // magnitudes are ordered as their bits
  for (std::int64_t i = 0; i < values.rows; ++i) {
    const float* row = values.row(i);
    for (std::int64_t j = 0; j < values.cols; ++j) {
      const std::uint32_t magnitude = bit_cast<std::uint32_t>(row[j]) & 0x7fffffff;
      largest = std::max(largest, magnitude < kInfinity ? magnitude : 0);
    }
  }
  return bit_cast<float>(largest);
}

// The power of two, 1 at the least, that brings `largest` near 2^64: 2^63 are left for sums of products above it, and
// gradients down to fp32's least number come into the normal range.
inline float gradient_scale(float largest) {
  constexpr int kTarget = 64, kMaxExponent = 126;  // so that the inverse is normal too
  if (largest == 0.0f) return 1.0f;
  return static_cast<float>(std::ldexp(1.0, std::clamp(kTarget - std::ilogb(largest), 0, kMaxExponent)));
}

inline void scale_by(float factor, const View<float>& values) {
  for (std::int64_t i = 0; i < values.rows; ++i) {
    float* row = values.row(i);
    for (std::int64_t j = 0; j < values.cols; ++j) row[j] *= factor;
  }
}

// model.backward(), which finds the gradients of the logits in `logits`. Gradients that are subnormal in the end are
// rounded once.
inline void scaled_backward(Model<float>& model, const std::vector<float>& parameters, const View<float>& logits,
                            std::vector<float>& gradients, Executor& executor) {
  const float scale = gradient_scale(largest_finite(logits));
  if (scale != 1.0f) scale_by(scale, logits);
  model.backward(parameters.data(), logits, gradients.data(), executor);
  if (scale != 1.0f) scale_by(1.0f / scale, {gradients.data(), 1, static_cast<std::int64_t>(gradients.size())});
}

}  // namespace tpce::sim
