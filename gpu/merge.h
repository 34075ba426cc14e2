// merge: the partials of a row, one thread a row.
#pragma once

#include "gpu/block.h"
#include "tpce/backend.h"

namespace tpce::gpu {

// One thread a row.
struct RowGrid {
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 1;
  static constexpr std::size_t kSharedBytes = 0;
};

struct NoState {};

// Calls body(row) for the rows of a block of a grid that has a thread for each.
template <class Block, class Body>
TPCE_DEVICE_INLINE void for_row(Block& block, std::int64_t rows, Body&& body) {
  auto none = block.template registers<NoState>();
  block.phase(none, [&](int thread, NoState&) {
    const std::int64_t row = block.index() * block.threads() + thread;
    if (row < rows) body(row);
  });
}

struct MergeArguments : RowGrid {
  Partials into;  // [rows]
  Partials from;  // [parts][rows], one after another in each plane
  std::int64_t parts;
  std::int64_t rows;
  bool keeps;  // what `into` holds already
};

template <class Block>
TPCE_DEVICE void merge_partials(Block& block, const MergeArguments& arguments) {
  for_row(block, arguments.rows, [&](std::int64_t row) {
    RowPartial merged;
    if (arguments.keeps) merged = arguments.into.load(row);
    for (std::int64_t part = 0; part < arguments.parts; ++part) {
      merge(merged, arguments.from.load(part * arguments.rows + row));
    }
    arguments.into.store(row, merged);
  });
}

}  // namespace tpce::gpu
