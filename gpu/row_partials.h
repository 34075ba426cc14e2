// row_partials: the partials of the rows of one shard, each logit read from memory once. A block takes one segment of
// one row; segments of a row merge exactly.
#pragma once

#include "gpu/labels.h"
#include "gpu/merge.h"
#include "gpu/row_walk.h"
#include "tpce/backend.h"

namespace tpce::gpu {

template <class T>
struct RowPartialsArguments {
  static constexpr int kThreads = RowCut<T>::kThreads;
  static constexpr int kBlocks = 6;
  static constexpr std::size_t kSharedBytes = TwoTiles::kSlots<RowCut<T>> * sizeof(T) + 16;

  const T* logits;           // of the first row
  std::int64_t row_stride;   // in elements
  std::int64_t classes;      // columns that are no padding
  std::int64_t first_class;  // class of column 0
  LabelView labels;          // of the first row
  std::int64_t rows;
  std::int64_t segments;         // of a row; the grid has rows * segments blocks
  std::int64_t segment_columns;  // of all segments of a row but the last
  Partials into;                 // [segments][rows], one after another in each plane
};

// What the threads of a block join of their sums.
struct BlockMaximum {
  float max;
  std::uint32_t flags;
};

// The partial of a segment without its target, given to every thread.
template <class Slots, class Cut, class Block, class View, class T>
TPCE_DEVICE_INLINE RowPartial partial_of_segment(Block& block, const View& slots, const Segment<T>& segment,
                                                 const Cut& cut) {
  auto row_bin = block.template shared<std::int32_t>(1);
  auto sums = block.template registers<ThreadSum>();
  block.phase(sums, [&](int thread, ThreadSum&) {
    if (thread == 0) row_bin.write(0, ThreadSum::kNoBin);
  });
  block.phase(sums, [&](int thread, ThreadSum& sum) {
    ThreadWalk<Cut, Slots, Block, View, decltype(row_bin)>{block, slots, row_bin, sum}.add_row(segment, cut, thread);
  });

  const BlockMaximum joined = block.reduce(
      sums,
      [](const ThreadSum& sum) {
        return BlockMaximum{sum.max, sum.flags};
      },
      [](BlockMaximum& into, const BlockMaximum& from) {
        into.max = larger_of(from.max, into.max);
        into.flags |= from.flags;
      });
  if ((joined.flags & ThreadSum::kNotFinite) != 0) return RowPartial::only_flags(RowPartial::kNotFinite);
  RowPartial partial;
  partial.max_logit = joined.max + 0.0f;  // -0 becomes +0
  const RowClass row_class = class_of(partial.max_logit);
  if (row_class == RowClass::kEmpty) return partial;
  const std::int32_t bin = row_class == RowClass::kGrid ? bin_of_logit(partial.max_logit) : 0;
  const bool by_definition =
      (joined.flags & ThreadSum::kOutOfRange) != 0 ||
      ((joined.flags & ThreadSum::kSeenLow) != 0 && partial.max_logit < kLowestLogit + kNothingBelow);
  const float max_logit = partial.max_logit;
  if (by_definition) {
    block.phase(sums, [&](int thread, ThreadSum& sum) {
      sum.digits = {};
      for (std::int64_t j = thread; j < segment.count; j += block.threads()) {
        if (j == segment.target) continue;
        const float x = widen(segment.logits[j]);
        if (row_class != RowClass::kGrid) {
          if (x == max_logit) sum.digits.d0 += 1;
        } else if (x >= -kHugeLogit) {
          const ExpSplit y = exp_split(x);
          add(sum.digits, digits_of(y.mantissa, y.exponent, bin));
        }
      }
    });
  }
  partial.digits = block.reduce(
      sums,
      [&](const ThreadSum& sum) {
        if (by_definition) return sum.digits;
        return sum.bin == ThreadSum::kNoBin ? Digits{} : raised(sum.digits, std::int64_t{bin} - sum.bin);
      },
      [](Digits& into, const Digits& from) { add(into, from); });
  return partial;
}

// A partial with the target's logit, where it is in the segment.
template <class T>
TPCE_DEVICE_INLINE RowPartial with_target(RowPartial partial, const Segment<T>& segment) {
  if (segment.target < 0) return partial;
  const float target_logit = widen(segment.logits[segment.target]) + 0.0f;
  if ((partial.flags & RowPartial::kNotFinite) != 0 || is_nan_or_positive_infinity(target_logit)) {
    return RowPartial::only_flags(RowPartial::kTargetHere | RowPartial::kNotFinite);
  }
  partial.target_logit = target_logit;
  partial.flags |= RowPartial::kTargetHere;
  return partial;
}

template <class T, class Block>
TPCE_DEVICE void row_partials(Block& block, const RowPartialsArguments<T>& arguments) {
  const std::int64_t row = block.index() / arguments.segments;
  const std::int64_t part = block.index() % arguments.segments;
  const std::int64_t label = arguments.labels.at(row);
  const std::int64_t first = part * arguments.segment_columns;
  RowPartial partial;
  if (label == arguments.labels.ignore_index) {
    partial.flags = RowPartial::kIgnored;
  } else if (arguments.labels.is_bad(label)) {
    partial.flags = RowPartial::kBadLabel;
  } else {
    const std::int64_t left = arguments.classes - first;
    const std::int64_t count = left < arguments.segment_columns ? left : arguments.segment_columns;
    if (count > 0) {
      const Segment<T> segment{arguments.logits + row * arguments.row_stride + first, count,
                               arguments.labels.target_in(label, arguments.first_class + first, count)};
      const auto slots = block.template shared<T>(TwoTiles::kSlots<RowCut<T>>);
      partial = with_target(partial_of_segment<TwoTiles>(block, slots, segment, RowCut<T>(segment)), segment);
    }
  }
  auto none = block.template registers<NoState>();
  block.phase(none, [&](int thread, NoState&) {
    if (thread == 0) arguments.into.store(part * arguments.rows + row, partial);
  });
}

}  // namespace tpce::gpu
