// Kernels of the canonical algorithm for vector instruction sets: one row of one shard at a time. Each gives the bits
// of its definition in tpce/, for every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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
  // Where the gradients of this stretch will be written once the row is done, element by element as the logits are
  // read, so that forward can ask memory for it; null where they will not, or over the logits.
  const void* gradients = nullptr;
};

// The exponentials of columns [first, first + count) of a stretch, in units of Q_b, as forward made them.
struct CachedBlock {
  std::int64_t first;
  std::int64_t count;
  std::int32_t bin;     // b
  const float* values;  // in the order in which the kernel walked the block
};

// Gradients that kept exponentials become by one product each, put off until their memory is needed for the next row.
struct DeferredBlock {
  void (*write)(const DeferredBlock& block);
  const float* values;  // as of CachedBlock
  std::int64_t count;
  float factor;
  void* out;
  std::int64_t target;  // its place in the block, or -1
  float target_gradient;
};

// What forward keeps for the backward of the same row: memory of one thread, used again for each row. The next row's
// forward writes the gradients of this one as it comes to their exponentials: each line is then fetched once for both,
// and writing, which waits for memory, goes on beside arithmetic.
class ExpCache {
 public:
  // Room for `capacity` exponentials.
  explicit ExpCache(std::size_t capacity) : capacity_(capacity), memory_(capacity + kLine / sizeof(float)) {
    void* first = memory_.data();
    std::size_t size = memory_.size() * sizeof(float);
    values_ = static_cast<float*>(std::align(kLine, capacity * sizeof(float), first, size));
  }
  ExpCache(const ExpCache&) = delete;
  ExpCache& operator=(const ExpCache&) = delete;

  void clear() {
    used_ = 0;
    blocks_.clear();
    stretches_.clear();
  }
  // What is kept from here on belongs to the next stretch of the row.
  void begin_stretch() { stretches_.push_back(blocks_.size()); }
  // The blocks kept of stretch i, in order; none where there was no such stretch.
  std::span<const CachedBlock> stretch(std::size_t i) const {
    if (i >= stretches_.size()) return {};
    const std::size_t end = i + 1 < stretches_.size() ? stretches_[i + 1] : blocks_.size();
    return std::span(blocks_).subspan(stretches_[i], end - stretches_[i]);
  }

  // Room for a block, or null where there is none.
  float* room(std::size_t values) { return capacity_ - used_ < values ? nullptr : values_ + used_; }
  void keep(const CachedBlock& block, std::size_t values) {
    blocks_.push_back(block);
    used_ += values;
  }

  // Blocks are put off in the order of their values.
  void defer(const DeferredBlock& block) { deferred_.push_back(block); }
  // The next block put off, or null.
  const DeferredBlock* deferred() const { return next_ < deferred_.size() ? &deferred_[next_] : nullptr; }
  void skip_deferred() { ++next_; }
  // Writes what was put off of values before end.
  void write_deferred_before(const float* end) {
    for (; next_ < deferred_.size() && deferred_[next_].values < end; ++next_) deferred_[next_].write(deferred_[next_]);
  }
  void write_deferred() {
    write_deferred_before(values_ + capacity_);
    drop_deferred();
  }
  void drop_deferred() {
    deferred_.clear();
    next_ = 0;
  }

 private:
  static constexpr std::size_t kLine = 64;  // of the processor's cache; whole vectors never cross one then

  std::size_t capacity_;
  std::vector<float> memory_;
  float* values_ = nullptr;
  std::size_t used_ = 0;
  std::vector<CachedBlock> blocks_;
  std::vector<std::size_t> stretches_;  // where each begins in blocks_
  std::vector<DeferredBlock> deferred_;
  std::size_t next_ = 0;  // of deferred_
};

struct KeptStretch {
  std::span<const CachedBlock> blocks;  // in order
  ExpCache* cache = nullptr;            // where blocks may be put off, or null
};

// The merge of row_partial() of tpce/row_partial.h over the stretches of a row; keeps exponentials where cache is not
// null, stretch by stretch.
using PartialKernel = RowPartial (*)(std::span<const RowLogits> row, BlockSkipping skipping, ExpCache* cache);

// Gradients [width] of the stretch. out may be the logits themselves, or null where only the squares are wanted;
// squares may be null; kept is what the partial kernel of the same target kept of this stretch, or nothing, and where
// to put off blocks.
using GradientKernel = void (*)(const RowLogits& row, const RowGradient& gradient, void* out, BinnedSum* squares,
                                const KeptStretch& kept);

// The kernels of one instruction set.
struct Kernels {
  static constexpr int kDtypes = 4;

  std::string_view name;
  PartialKernel partial[kDtypes];             // by the DType of the logits; null for fp64
  GradientKernel gradient[kDtypes][kDtypes];  // by the DType of the logits, then that of the gradient

  FinalRow (*finalize)(const RowPartial&);               // of tpce/row_finalize.h
  RowGradient (*row_gradient)(const SavedRow&, double);  // likewise

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

// The kernels of a target, or of the best one where name is empty. Throws std::invalid_argument, which names the
// argument and lists those that the processor runs, for any other name.
Kernels kernels_for(std::string_view name, std::string_view argument = "target");

}  // namespace tpce::simd
