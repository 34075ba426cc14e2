// What a vector instruction set is called: as Highway calls it, and "portable" where there are no vectors.
#pragma once

#include <hwy/highway.h>

#include <cstdint>

namespace tpce::simd {

inline const char* target_name(std::int64_t target) {
  return target == HWY_SCALAR || target == HWY_EMU128 ? "portable" : hwy::TargetName(target);
}

}  // namespace tpce::simd
