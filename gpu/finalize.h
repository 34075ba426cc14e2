// finalize: results of merged partials, one thread a row.
#pragma once

#include "gpu/merge.h"

namespace tpce::gpu {

struct FinalizeArguments : RowGrid {
  Partials partials;
  RowResults results;
};

template <class Block>
TPCE_DEVICE void finalize_rows(Block& block, const FinalizeArguments& arguments) {
  for_row(block, arguments.results.rows,
          [&](std::int64_t row) { arguments.results.store(row, finalize(arguments.partials.load(row))); });
}

}  // namespace tpce::gpu
