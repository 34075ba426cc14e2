// Distances in units in the last place (ulp): the steps between two numbers along all that a format has. -0 and +0 are
// one place, subnormals are numbers like others, infinity is the step behind the largest one. NaN is no place on that
// line: two NaNs are 0 apart whatever their bits are, a NaN and a number have no distance.
#pragma once

#include <cstdint>
#include <optional>

#include "tpce/dtype.h"

namespace tpce::sim {
namespace ulp_steps_detail {

inline std::uint32_t bits_of(float x) { return bit_cast<std::uint32_t>(x); }
inline std::uint32_t bits_of(BFloat16 x) { return x.bits; }
inline std::uint32_t bits_of(Float16 x) { return x.bits; }

// On the line of the format's numbers, 0 for both zeros.
template <class T>
std::int64_t position(T x) {
  constexpr std::uint32_t kSign = std::uint32_t{1} << (8 * sizeof(T) - 1);
  const auto magnitude = static_cast<std::int64_t>(bits_of(x) & (kSign - 1));
  return (bits_of(x) & kSign) != 0 ? -magnitude : magnitude;
}

}  // namespace ulp_steps_detail

// Of two fp32, bf16 or fp16 numbers; nothing where one of the two alone is NaN.
template <class T>
std::optional<std::uint64_t> ulp_steps(T a, T b) {
  const bool a_is_nan = is_nan(widen(a)), b_is_nan = is_nan(widen(b));
  if (a_is_nan && b_is_nan) return 0;
  if (a_is_nan || b_is_nan) return std::nullopt;
  const std::int64_t distance = ulp_steps_detail::position(a) - ulp_steps_detail::position(b);
  return static_cast<std::uint64_t>(distance < 0 ? -distance : distance);
}

}  // namespace tpce::sim
