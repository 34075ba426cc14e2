// Labels as kernels read them.
#pragma once

#include <cstdint>

#include "gpu/intrinsics.h"

namespace tpce::gpu {

// A label outside [0, vocab) that is not ignore_index sets RowPartial::kBadLabel, which makes the row NaN, and which
// the driver reports once it waits for the results.
struct LabelView {
  const void* data;
  bool wide;
  std::int64_t ignore_index;
  std::int64_t vocab;

  TPCE_DEVICE std::int64_t at(std::int64_t row) const {
    return wide ? static_cast<const std::int64_t*>(data)[row] : static_cast<const std::int32_t*>(data)[row];
  }
  TPCE_DEVICE bool is_bad(std::int64_t label) const { return (label < 0 || label >= vocab) && label != ignore_index; }
};

}  // namespace tpce::gpu
