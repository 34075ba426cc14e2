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
  // Which of `classes` classes from first_class >= 0 on a label is, or -1: none of them, no class at all, ignored.
  TPCE_DEVICE std::int64_t target_in(std::int64_t label, std::int64_t first_class, std::int64_t classes) const {
    if (label == ignore_index || label < first_class) return -1;
    const std::int64_t target = label - first_class;
    return target < classes ? target : -1;
  }
  TPCE_DEVICE bool is_bad(std::int64_t label) const { return (label < 0 || label >= vocab) && label != ignore_index; }
};

}  // namespace tpce::gpu
