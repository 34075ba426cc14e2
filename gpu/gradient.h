// gradient: the gradients of the rows of one shard, each logit read once and each gradient written once, in place or
// not. A block takes one segment of one row. squares: the sum of their squares alone.
#pragma once

#include "gpu/labels.h"
#include "gpu/merge.h"
#include "gpu/row_walk.h"
#include "tpce/row_finalize.h"

namespace tpce::gpu {

// Rows of one shard, and what their gradients are made of.
template <class T>
struct GradientRows {
  const T* logits;           // of the first row
  std::int64_t row_stride;   // in elements
  std::int64_t columns;      // padding included
  std::int64_t classes;      // columns that are no padding
  std::int64_t first_class;  // class of column 0
  LabelView labels;          // of the first row
  const SavedRow* saved;     // of the first row
  double upstream;
  const float* upstream_of_row;  // of the first row, or null
  std::int64_t segments;         // of a row; the grid has rows * segments blocks
  std::int64_t segment_columns;  // of all segments of a row but the last
};

// What a block takes of a row: columns [first, first + columns), of which `classes` are no padding.
struct GradientSegment {
  std::int64_t row;
  std::int64_t first;
  std::int64_t columns;
  std::int64_t classes;
  std::int64_t target;  // -1: not among them
  RowGradient gradient;
};

TPCE_DEVICE_INLINE std::int64_t at_most(std::int64_t value, std::int64_t limit) {
  return value < 0 ? 0 : value < limit ? value : limit;
}

// All but its gradient.
template <class T>
TPCE_DEVICE_INLINE GradientSegment segment_of(const GradientRows<T>& rows, std::int64_t block) {
  GradientSegment segment;
  segment.row = block / rows.segments;
  segment.first = block % rows.segments * rows.segment_columns;
  segment.columns = at_most(rows.columns - segment.first, rows.segment_columns);
  segment.classes = at_most(rows.classes - segment.first, segment.columns);
  segment.target =
      rows.labels.target_in(rows.labels.at(segment.row), rows.first_class + segment.first, segment.classes);
  return segment;
}

template <class T>
TPCE_DEVICE_INLINE RowGradient gradient_of(const GradientRows<T>& rows, std::int64_t row, const SavedRow& saved) {
  const double g = rows.upstream_of_row != nullptr ? static_cast<double>(rows.upstream_of_row[row]) : rows.upstream;
  return row_gradient(saved, g);
}

// dz of column j of a segment, in fp32, by its definition.
template <class T>
TPCE_DEVICE_INLINE float gradient_at(const GradientSegment& segment, const T* logits, std::int64_t j) {
  if (j >= segment.classes) return 0.0f;
  if (j == segment.target) return segment.gradient.target;
  const bool reads =
      segment.gradient.kind == RowGradient::Kind::kGrid || segment.gradient.kind == RowGradient::Kind::kHuge;
  return non_target_gradient(segment.gradient, reads ? widen(logits[j]) : 0.0f);
}

// Gradients as one product of register_exp() each: factor is q 2^(k - B + 23 b) for the row's bin b. Then RN(y q) 2^s
// is RN(y q 2^s) wherever y is in [2^-87, 2^22], which values above the clamp see to.
struct OneProduct {
  bool holds = false;
  float factor = 0.0f;
  RegisterBin form = register_bin(0);
  float clamp_below = 0.0f;

  TPCE_DEVICE_INLINE explicit OneProduct(const RowGradient& gradient) {
    if (gradient.kind != RowGradient::Kind::kGrid || !(gradient.max_logit > kLowestLogit + 1024.0f) ||
        !(gradient.max_logit < kHighestLogit)) {
      return;
    }
    const std::int32_t bin = bin_of_logit(gradient.max_logit);
    const std::int64_t power = gradient.shift + std::int64_t{kBinBits} * bin;
    if (power < -38 || power > 100) return;
    holds = true;
    factor = multiply_rn(gradient.factor, static_cast<float>(power_of_two(power)));
    form = register_bin(bin);
    clamp_below = form.clamp < 0.0f ? form.clamp : bit_cast<float>(std::uint32_t{0x7f800000});
  }

  TPCE_DEVICE_INLINE float of(float x) const { return multiply_rn(register_exp(x, form), factor); }
};

template <class T, class Out>
struct GradientArguments {
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 4;
  static constexpr std::size_t kSharedBytes = 0;
  static constexpr int kVectors = 4;  // that a thread has under way

  GradientRows<T> rows;
  Out* gradients;                // of the first row; may be the logits
  std::int64_t gradient_stride;  // in elements
};

// Stores the gradients of a vector of logits.
template <class T, class Out>
TPCE_DEVICE_INLINE void store_products(const OneProduct& product, const Words4& words, Out* out) {
  constexpr int kElements = Packed<T>::kElements;
  float dz[kElements];
  TPCE_UNROLLED for (int i = 0; i < kElements; ++i) dz[i] = product.of(Packed<T>::at(words, i));
  store_rounded(dz, out);
}

// A segment's gradients by their definition, and where they go.
template <class T, class Out>
struct SegmentGradients {
  static constexpr int kElements = Packed<T>::kElements;

  const GradientSegment& segment;
  const T* logits;
  Out* out;
  std::int64_t head;  // columns before the first vector

  TPCE_DEVICE_INLINE void put(std::int64_t j) const { round_to(gradient_at(segment, logits, j), &out[j]); }
  TPCE_DEVICE_INLINE void put_vector(std::int64_t j) const {
    TPCE_ROLLED for (int i = 0; i < kElements; ++i) put(j + i);
  }
  // A thread's share of what lies before and after the columns that vectors took.
  TPCE_DEVICE_INLINE void put_edges(std::int64_t in_vectors, int thread, int threads) const {
    TPCE_ROLLED for (std::int64_t i = thread; i < segment.columns - in_vectors; i += threads) {
      put(i < head ? i : i + in_vectors);
    }
  }
};

// The share of one thread of a segment's vectors.
template <class T, class Out>
TPCE_DEVICE_INLINE void put_vectors(const SegmentGradients<T, Out>& all, const OneProduct& product, std::int64_t count,
                                    int thread) {
  constexpr int kThreads = GradientArguments<T, Out>::kThreads;
  constexpr int kVectors = GradientArguments<T, Out>::kVectors;
  constexpr int kElements = Packed<T>::kElements;
  constexpr std::int64_t kGroup = kVectors * kThreads;  // vectors that the block has under way
  // The vector with the target, of this thread's, or none: its place is written once more, after the vector.
  const std::int64_t target = all.segment.target;
  const std::int64_t target_vector = target >= all.head ? (target - all.head) / kElements : std::int64_t{-1};
  const std::int64_t own_target = target_vector >= 0 && target_vector % kThreads == thread ? target_vector : -1;
  const int own_group = own_target < 0 ? -1 : static_cast<int>(own_target / kGroup);
  const auto put_target = [&] { round_to(all.segment.gradient.target, &all.out[target]); };
  const int groups = static_cast<int>(count / kGroup);
  const T* from = all.logits + all.head + thread * kElements;
  Out* to = all.out + all.head + thread * kElements;
  TPCE_ROLLED for (int group = 0; group < groups; ++group) {
    Words4 words[kVectors];
    TPCE_UNROLLED for (int i = 0; i < kVectors; ++i) words[i] = load_16(from + i * kThreads * kElements);
    const float low = largest_of<T>(kVectors, [&](int i) { return words[i]; }).extremes().low;
    if (low > product.clamp_below) {
      TPCE_UNROLLED for (int i = 0; i < kVectors; ++i) {
        store_products<T>(product, words[i], to + i * kThreads * kElements);
      }
      if (group == own_group) put_target();
    } else {
      TPCE_ROLLED for (int i = 0; i < kVectors; ++i) {
        all.put_vector(all.head + (group * kGroup + i * kThreads + thread) * kElements);
      }
    }
    from += kGroup * kElements;
    to += kGroup * kElements;
  }
  TPCE_ROLLED for (std::int64_t v = groups * kGroup + thread; v < count; v += kThreads) {
    const Words4 words = load_16(from);
    if (largest_of<T>(1, [&](int) { return words; }).extremes().low > product.clamp_below) {
      store_products<T>(product, words, to);
      if (v == own_target) put_target();
    } else {
      all.put_vector(all.head + v * kElements);
    }
    from += kThreads * kElements;
    to += kThreads * kElements;
  }
}

template <class T, class Out, class Block>
TPCE_DEVICE void gradient(Block& block, const GradientArguments<T, Out>& arguments) {
  constexpr int kElements = Packed<T>::kElements;
  GradientSegment segment = segment_of(arguments.rows, block.index());
  segment.gradient = gradient_of(arguments.rows, segment.row, arguments.rows.saved[segment.row]);
  const T* logits = arguments.rows.logits + segment.row * arguments.rows.row_stride + segment.first;
  Out* out = arguments.gradients + segment.row * arguments.gradient_stride + segment.first;
  const OneProduct product(segment.gradient);
  const std::int64_t head = at_most(elements_to_aligned(logits), segment.classes);
  const bool vectors_fit = product.holds && is_store_aligned<kElements>(out + head);
  const std::int64_t count = vectors_fit ? (segment.classes - head) / kElements : 0;
  const SegmentGradients<T, Out> all{segment, logits, out, head};
  auto none = block.template registers<NoState>();
  block.phase(none, [&](int thread, NoState&) {
    if (count > 0) put_vectors(all, product, count, thread);
    all.put_edges(count * kElements, thread, GradientArguments<T, Out>::kThreads);
  });
}

template <class T>
struct SquaresArguments {
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 2;
  static constexpr std::size_t kSharedBytes = 0;

  GradientRows<T> rows;
  BinnedSum* into;  // one a block
};

template <class T, class Block>
TPCE_DEVICE void squares(Block& block, const SquaresArguments<T>& arguments) {
  GradientSegment segment = segment_of(arguments.rows, block.index());
  segment.gradient = gradient_of(arguments.rows, segment.row, arguments.rows.saved[segment.row]);
  const T* logits = arguments.rows.logits + segment.row * arguments.rows.row_stride + segment.first;
  auto sums = block.template registers<BinnedSum>();
  block.phase(sums, [&](int thread, BinnedSum& sum) {
    for (std::int64_t j = thread; j < segment.columns; j += block.threads()) {
      add_square(sum, gradient_at(segment, logits, j));
    }
  });
  const BinnedSum all = block.reduce(
      sums, [](const BinnedSum& sum) { return sum; },
      [](BinnedSum& into, const BinnedSum& from) { merge(into, from); });
  block.phase(sums, [&](int thread, BinnedSum&) {
    if (thread == 0) arguments.into[block.index()] = all;
  });
}

}  // namespace tpce::gpu
