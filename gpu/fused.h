// fused: losses and gradients of rows that one shard holds and that fit in the shared memory of a cluster, in one
// launch: each logit read from memory once, each gradient written once, in place or not. A cluster takes one row, each
// of its blocks one segment.
#pragma once

#include "gpu/gradient.h"
#include "gpu/row_partials.h"

namespace tpce::gpu {

template <class T>
struct FusedArguments {
  static constexpr int kThreads = 512;
  static constexpr int kBlocks = 1;
  // Beside the segment's own: the segment's bin.
  static constexpr std::size_t kSharedBytes = 16;
  using Cut = RowCut<T, kThreads, 4>;

  // Of a row in so many segments, which are all as far from 16 bytes as the row is.
  static constexpr std::int64_t segment_columns(std::int64_t columns, std::int64_t segments) {
    return segments == 1 ? columns : (columns + segments * Cut::kStep - 1) / (segments * Cut::kStep) * Cut::kStep;
  }

  // Shared memory of a block, whatever the alignment of a segment.
  static constexpr std::size_t shared_bytes(std::int64_t columns) {
    const std::int64_t tiles = (columns + Cut::kTile - 1) / Cut::kTile;
    return static_cast<std::size_t>(tiles * Cut::kTile) * sizeof(T) + kSharedBytes;
  }

  GradientRows<T> rows;  // a cluster has as many blocks as a row segments; saved is not used
  RowResults results;
  T* gradients;                  // of the first row; may be the logits
  std::int64_t gradient_stride;  // in elements
};

// The share of one thread of the gradients of vectors that lie in shared memory, where the target is -inf.
template <class Cut, class View, class T>
TPCE_DEVICE_INLINE void put_vectors_from(const View& slots, const Cut& cut, const OneProduct& product,
                                         const SegmentGradients<T, T>& all, int thread) {
  // A vector by its place in shared memory and its first column.
  const auto put = [&](int place, std::int64_t j) {
    const Words4 words = slots.read_16(place);
    if (largest_of<T>(1, [&](int) { return words; }).extremes().low > product.clamp_below) {
      store_products<T>(product, words, all.out + j);
    } else {
      all.put_vector(j);
    }
  };
  const int place = Cut::place_in_tile(thread);
  for (int tile = 0; tile < cut.tiles; ++tile) {
    TPCE_UNROLLED for (int v = 0; v < Cut::kVectors; ++v) {
      const int at = tile * Cut::kTile + place + v * Cut::kStep;
      put(at, cut.head + at);
    }
  }
  const int rest = cut.rest_of(thread);
  TPCE_ROLLED for (int v = 0; v < rest; ++v) {
    const std::int64_t vector = std::int64_t{v} * Cut::kThreads + thread;
    put(cut.tiles * Cut::kTile + place + v * Cut::kStep,
        cut.head + std::int64_t{cut.tiles} * Cut::kTile + vector * Cut::kElements);
  }
}

template <class T, class Block>
TPCE_DEVICE void fused(Block& block, const FusedArguments<T>& arguments) {
  using Cut = typename FusedArguments<T>::Cut;
  const GradientRows<T>& rows = arguments.rows;
  GradientSegment segment = segment_of(rows, block.index());
  const std::int64_t label = rows.labels.at(segment.row);
  const T* logits = rows.logits + segment.row * rows.row_stride + segment.first;
  T* out = arguments.gradients + segment.row * arguments.gradient_stride + segment.first;
  const Segment<T> walked{logits, segment.classes, segment.target};
  const Cut cut(walked);
  const auto slots = block.template shared<T>(WholeRow::slots(cut));
  RowPartial partial;
  bool in_slots = false;
  if (label == rows.labels.ignore_index) {
    partial.flags = RowPartial::kIgnored;
  } else if (rows.labels.is_bad(label)) {
    partial.flags = RowPartial::kBadLabel;
  } else if (segment.classes > 0) {
    partial = with_target(partial_of_segment<WholeRow>(block, slots, walked, cut), walked);
    in_slots = true;
  }
  partial = block.join_cluster(partial, [](RowPartial& into, const RowPartial& from) { merge(into, from); });
  // Every thread has read the target's logit before any passes the barrier of this phase and writes over it.
  const FinalRow final_row = finalize(partial);
  auto none = block.template registers<NoState>();
  block.phase(none, [&](int thread, NoState&) {
    if (thread == 0 && segment.first == 0) arguments.results.store(segment.row, final_row);
  });

  segment.gradient = gradient_of(rows, segment.row, final_row.saved);
  const OneProduct product(segment.gradient);
  const bool vectors_fit = in_slots && product.holds && is_store_aligned<Cut::kElements>(out + cut.head);
  const SegmentGradients<T, T> all{segment, logits, out, cut.head};
  block.phase(none, [&](int thread, NoState&) {
    if (vectors_fit) put_vectors_from(slots, cut, product, all, thread);
    all.put_edges(vectors_fit ? segment.classes - cut.edges : 0, thread, Cut::kThreads);
  });
}

}  // namespace tpce::gpu
