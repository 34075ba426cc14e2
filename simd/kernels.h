// Kernels of the canonical algorithm for vector instruction sets: one row of one shard at a time. Each gives the bits
// of its definition in tpce/, for every instruction set.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tpce/row_finalize.h"

namespace tpce::simd {

// Whether blocks whose leading digits are known to be zero skip them. The states are equal either way.
enum class BlockSkipping : std::uint8_t { kOn, kOff };

// A stretch of one row: logits [width], of which the first `classes` are not padding.
struct RowLogits {
  const void* logits = nullptr;
  std::int64_t classes = 0;
  std::int64_t width = 0;
  std::int64_t target = -1;  // -1: held elsewhere
};

// row_partial() of tpce/row_partial.h.
using PartialKernel = RowPartial (*)(const RowLogits& row, BlockSkipping skipping);

// Gradients [width] of the stretch. out may be the logits themselves, or null where only the squares are wanted;
// squares may be null.
using GradientKernel = void (*)(const RowLogits& row, const RowGradient& gradient, void* out, BinnedSum* squares);

// The kernels of one instruction set.
struct Kernels {
  static constexpr int kDtypes = 4;

  std::string_view name;
  PartialKernel partial[kDtypes];             // by the DType of the logits; null for fp64
  GradientKernel gradient[kDtypes][kDtypes];  // by the DType of the logits, then that of the gradient

  PartialKernel partial_of(DType logits) const { return partial[static_cast<int>(logits)]; }
  GradientKernel gradient_of(DType logits, DType out) const {
    return gradient[static_cast<int>(logits)][static_cast<int>(out)];
  }
};

// An instruction set that this build has kernels for, as Highway names it: "AVX3", "AVX2", "NEON", "SVE2", ...; or
// "portable".
struct Target {
  std::string name;
  bool supported = false;  // by the processor that runs this
};

// Best first.
std::vector<Target> targets();

// The kernels of a target, or of the best one where name is empty. Throws std::invalid_argument, listing those that the
// processor runs, for any other name.
Kernels kernels_for(std::string_view name);

}  // namespace tpce::simd
