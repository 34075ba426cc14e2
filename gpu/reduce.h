// reduce: the losses of rows, and squares of gradients, to one sum; one block.
#pragma once

#include "gpu/merge.h"

namespace tpce::gpu {

struct ReduceGrid {
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 1;
  static constexpr std::size_t kSharedBytes = 0;
};

struct ReduceLossesArguments : ReduceGrid {
  RowResults results;
  std::int64_t first_row;  // the batch's index of the first row
  LossSum* sum;            // what is added to
};

template <class Block>
TPCE_DEVICE void reduce_losses(Block& block, const ReduceLossesArguments& arguments) {
  auto sums = block.template registers<LossSum>();
  block.phase(sums, [&](int thread, LossSum& sum) {
    for (std::int64_t i = thread; i < arguments.results.rows; i += block.threads()) {
      add(sum, arguments.results.saved[i].status, arguments.results.nll[i], arguments.first_row + i);
    }
  });
  const LossSum all = block.reduce(
      sums, [](const LossSum& sum) { return sum; }, [](LossSum& into, const LossSum& from) { merge(into, from, 0); });
  block.phase(sums, [&](int thread, LossSum&) {
    if (thread == 0) merge(*arguments.sum, all, 0);
  });
}

struct ReduceSquaresArguments : ReduceGrid {
  const BinnedSum* parts;
  std::int64_t count;
  BinnedSum* sum;  // what is added to
};

template <class Block>
TPCE_DEVICE void reduce_squares(Block& block, const ReduceSquaresArguments& arguments) {
  auto sums = block.template registers<BinnedSum>();
  block.phase(sums, [&](int thread, BinnedSum& sum) {
    for (std::int64_t i = thread; i < arguments.count; i += block.threads()) merge(sum, arguments.parts[i]);
  });
  const BinnedSum all = block.reduce(
      sums, [](const BinnedSum& sum) { return sum; },
      [](BinnedSum& into, const BinnedSum& from) { merge(into, from); });
  block.phase(sums, [&](int thread, BinnedSum&) {
    if (thread == 0) merge(*arguments.sum, all);
  });
}

}  // namespace tpce::gpu
