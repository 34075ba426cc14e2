// fused: losses and gradients of rows that one shard holds and that fit in shared memory, in one launch: each logit
// read from memory once, each gradient written once, in place or not. A block takes one row.
#pragma once

#include "gpu/gradient.h"
#include "gpu/row_partials.h"

namespace tpce::gpu {

template <class T>
struct FusedArguments {
  static constexpr int kThreads = 512;
  static constexpr int kBlocks = 1;
  // Beside the row's own: the row's bin.
  static constexpr std::size_t kSharedBytes = 16;
  using Cut = RowCut<T, kThreads, 4>;

  // Shared memory of a block, whatever the alignment of a row.
  static constexpr std::size_t shared_bytes(std::int64_t classes) {
    const std::int64_t tiles = (classes + Cut::kTile - 1) / Cut::kTile;
    return static_cast<std::size_t>(tiles * Cut::kTile) * sizeof(T) + kSharedBytes;
  }

  GradientRows<T> rows;  // one segment a row; saved is not used
  RowResults results;
  T* gradients;                  // of the first row; may be the logits
  std::int64_t gradient_stride;  // in elements
};

template <class T, class Block>
TPCE_DEVICE void fused(Block& block, const FusedArguments<T>& arguments) {
  using Cut = typename FusedArguments<T>::Cut;
  const GradientRows<T>& rows = arguments.rows;
  const std::int64_t row = block.index();
  const std::int64_t label = rows.labels.at(row);
  const std::int64_t target = label - rows.first_class;
  const T* logits = rows.logits + row * rows.row_stride;
  T* out = arguments.gradients + row * arguments.gradient_stride;
  const Segment<T> logits_of_row{logits, rows.classes, target >= 0 && target < rows.classes ? target : -1};
  const Cut cut(logits_of_row);
  const auto slots = block.template shared<T>(WholeRow::slots(cut));
  RowPartial partial;
  bool in_slots = false;
  if (label == rows.labels.ignore_index) {
    partial.flags = RowPartial::kIgnored;
  } else if (rows.labels.is_bad(label)) {
    partial.flags = RowPartial::kBadLabel;
  } else {
    partial = with_target(partial_of_segment<WholeRow>(block, slots, logits_of_row, cut), logits_of_row);
    in_slots = true;
  }
  // Every thread has read the target's logit before any passes the barrier of this phase and writes over it.
  const FinalRow final_row = finalize(partial);
  auto none = block.template registers<NoState>();
  block.phase(none, [&](int thread, NoState&) {
    if (thread == 0) arguments.results.store(row, final_row);
  });

  const double g = rows.upstream_of_row != nullptr ? static_cast<double>(rows.upstream_of_row[row]) : rows.upstream;
  const GradientSegment segment{
      row, 0, rows.columns, rows.classes, logits_of_row.target, row_gradient(final_row.saved, g)};
  const OneProduct product(segment.gradient);
  const bool vectors_fit = in_slots && product.holds && is_store_aligned<Cut::kElements>(out + cut.head);
  block.phase(none, [&](int thread, NoState&) {
    // A vector of this thread, by its place in shared memory and its first column. Where the target was is -inf.
    const auto write = [&](int place, std::int64_t j) {
      const Words4 words = slots.read_16(place);
      if (largest_of<T>(1, [&](int) { return words; }).extremes().low > product.clamp_below) {
        store_products<T>(product, words, out + j);
        return;
      }
      TPCE_ROLLED for (int i = 0; i < Cut::kElements; ++i) {
        round_to(gradient_at(segment, logits, j + i), &out[j + i]);
      }
    };
    std::int64_t in_vectors = 0;
    if (vectors_fit) {
      const int place = Cut::place_in_tile(thread);
      for (int tile = 0; tile < cut.tiles; ++tile) {
        TPCE_UNROLLED for (int v = 0; v < Cut::kVectors; ++v) {
          const int at = tile * Cut::kTile + place + v * Cut::kStep;
          write(at, cut.head + at);
        }
      }
      const int rest = cut.rest_of(thread);
      TPCE_ROLLED for (int v = 0; v < rest; ++v) {
        const std::int64_t vector = std::int64_t{v} * Cut::kThreads + thread;
        write(cut.tiles * Cut::kTile + place + v * Cut::kStep,
              cut.head + std::int64_t{cut.tiles} * Cut::kTile + vector * Cut::kElements);
      }
      in_vectors = rows.classes - cut.edges;
    }
    TPCE_ROLLED for (std::int64_t i = thread; i < segment.columns - in_vectors; i += Cut::kThreads) {
      const std::int64_t j = i < cut.head ? i : i + in_vectors;
      round_to(gradient_at(segment, logits, j), &out[j]);
    }
  });
}

}  // namespace tpce::gpu
