// What the production forms share: how a block walks the columns of its row, sums of fp32 in a fixed order, the row
// maximum, and all-reduces between shards.
//
// Beside the order-free kernels these stand for comparison: the losses in use, in fp32 with the hardware's exponential,
// fused as a compiler does. A block takes a row. Each thread walks its columns of it in strides, with a sum of its own
// for every place in a vector; the sums are then added in a tree. So their bits depend on an order, which is the same
// in every run.
//
// A row whose label is ignore_index is not read, and its loss and gradients are 0; one whose label is no class has NaN.
// A row with NaN or +inf, or with nothing above -inf, becomes NaN by the arithmetic itself.
#pragma once

#include "gpu/labels.h"
#include "gpu/merge.h"
#include "gpu/packed.h"

namespace tpce::gpu {

// One block a row, of all kernels that read logits.
struct ProductionGrid {
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 3;
  static constexpr std::size_t kSharedBytes = kThreads * sizeof(float);
  static constexpr int kVectors = 4;  // that a thread has under way
};

// Rows of one shard.
template <class T>
struct ProductionRows {
  using Logit = T;

  const T* logits;           // of the first row
  std::int64_t row_stride;   // in elements
  std::int64_t columns;      // padding included
  std::int64_t classes;      // columns that are no padding
  std::int64_t first_class;  // class of column 0
  LabelView labels;          // of the first row

  TPCE_DEVICE_INLINE const T* row(std::int64_t i) const { return logits + i * row_stride; }
  TPCE_DEVICE_INLINE bool is_ignored(std::int64_t i) const { return labels.at(i) == labels.ignore_index; }
  // -1: the row has none here.
  TPCE_DEVICE_INLINE std::int64_t target_of(std::int64_t i) const {
    return labels.target_in(labels.at(i), first_class, classes);
  }
};

// What a rank adds to the all-reduce of a target's value: 0 where another has the target, NaN where no rank has it.
template <class T, class Value>
TPCE_DEVICE_INLINE float owned_by_target(const ProductionRows<T>& rows, std::int64_t row, Value&& value) {
  if (rows.labels.is_bad(rows.labels.at(row))) return canonical_nan();
  const std::int64_t target = rows.target_of(row);
  return target >= 0 ? value(widen(rows.row(row)[target])) : 0.0f;
}

// Gradient of the whole result with respect to each row's loss.
struct UpstreamView {
  float scalar;
  const float* per_row;  // of the first row, or null

  TPCE_DEVICE_INLINE float of(std::int64_t row) const { return per_row != nullptr ? per_row[row] : scalar; }
};

// NaN for a row without a target, which makes NaN of what it scales.
template <class T>
TPCE_DEVICE_INLINE float scale_of(const ProductionRows<T>& rows, const UpstreamView& upstream, std::int64_t row) {
  return rows.labels.is_bad(rows.labels.at(row)) ? canonical_nan() : upstream.of(row);
}

// The first `count` columns of a row as whole 16 bytes, and as edges, values before the first and after the last.
template <class T>
struct RowVectors {
  static constexpr int kElements = Packed<T>::kElements;

  const T* row;
  std::int64_t count;
  std::int64_t head;
  std::int64_t vectors;

  TPCE_DEVICE_INLINE RowVectors(const T* first, std::int64_t columns) : row(first), count(columns) {
    head = elements_to_aligned(row);
    head = head < count ? head : count;
    vectors = (count - head) / kElements;
  }

  // The columns of one thread: vector(words, j) for those from j on, value(x, j) for an edge.
  template <class Vector, class Value>
  TPCE_DEVICE_INLINE void walk(int thread, Vector&& vector, Value&& value) const {
    constexpr int kThreads = ProductionGrid::kThreads;
    constexpr int kVectors = ProductionGrid::kVectors;
    const T* from = row + head;
    std::int64_t v = thread;
    TPCE_ROLLED for (; v + (kVectors - 1) * kThreads < vectors; v += kVectors * kThreads) {
      Words4 words[kVectors];
      TPCE_UNROLLED for (int i = 0; i < kVectors; ++i) words[i] = load_16(from + (v + i * kThreads) * kElements);
      TPCE_UNROLLED for (int i = 0; i < kVectors; ++i) vector(words[i], head + (v + i * kThreads) * kElements);
    }
    TPCE_ROLLED for (; v < vectors; v += kThreads) vector(load_16(from + v * kElements), head + v * kElements);
    const std::int64_t in_vectors = vectors * kElements;
    TPCE_ROLLED for (std::int64_t i = thread; i < count - in_vectors; i += kThreads) {
      const std::int64_t j = i < head ? i : i + in_vectors;
      value(widen(row[j]), j);
    }
  }
};

// Which place of a vector whose first column is j the target has, or -1.
template <int kElements>
TPCE_DEVICE_INLINE int place_in_vector(std::int64_t target, std::int64_t j) {
  return target >= j && target < j + kElements ? static_cast<int>(target - j) : -1;
}

template <class Out>
struct WrittenRow {
  Out* out;  // may be the row that is read
  std::int64_t columns;
  std::int64_t target;  // column, or -1
};

// Writes number_of(x, is_target) of each value of `in`, rounded to Out, and 0 to the columns behind.
template <class T, class Out, class Number>
TPCE_DEVICE_INLINE void write_row(RowVectors<T> in, const WrittenRow<Out>& to, int thread, Number&& number_of) {
  constexpr int kElements = RowVectors<T>::kElements;
  if (!is_store_aligned<kElements>(to.out + in.head)) in.vectors = 0;
  in.walk(
      thread,
      [&](const Words4& words, std::int64_t j) {
        const int place = place_in_vector<kElements>(to.target, j);
        float numbers[kElements];
        TPCE_UNROLLED for (int i = 0; i < kElements; ++i) numbers[i] = number_of(Packed<T>::at(words, i), i == place);
        store_rounded(numbers, to.out + j);
      },
      [&](float x, std::int64_t j) { to.out[j] = round_one(Out{}, number_of(x, j == to.target)); });
  for (std::int64_t j = in.count + thread; j < to.columns; j += ProductionGrid::kThreads) to.out[j] = Out{};
}

// In a balanced tree: neighbours first.
template <int kCount>
TPCE_DEVICE_INLINE float sum_in_tree(const float* numbers) {
  if constexpr (kCount == 1) {
    return numbers[0];
  } else {
    return add_rn(sum_in_tree<kCount / 2>(numbers), sum_in_tree<kCount / 2>(numbers + kCount / 2));
  }
}

// One sum for each place in a vector.
template <class T>
struct PlaceSums {
  static constexpr int kElements = Packed<T>::kElements;
  float at[kElements] = {};

  TPCE_DEVICE_INLINE float total() const { return sum_in_tree<kElements>(at); }
};

// Calls store(sum) in thread 0 with the sum over the threads, each of which has written its own to `slots` in the phase
// before: 32 sums of every 32nd, then their sum.
template <class Block, class View, class Store>
TPCE_DEVICE_INLINE void sum_over_threads(Block& block, const View& slots, Store&& store) {
  constexpr int kWarp = 32;
  constexpr int kRounds = ProductionGrid::kThreads / kWarp;
  auto none = block.template registers<NoState>();
  block.phase(none, [&](int thread, NoState&) {
    if (thread >= kWarp) return;
    float own[kRounds];
    TPCE_UNROLLED for (int i = 0; i < kRounds; ++i) own[i] = slots.read(thread + i * kWarp);
    slots.write(thread, sum_in_tree<kRounds>(own));
  });
  block.phase(none, [&](int thread, NoState&) {
    if (thread > 0) return;
    float own[kWarp];
    TPCE_UNROLLED for (int i = 0; i < kWarp; ++i) own[i] = slots.read(i);
    store(sum_in_tree<kWarp>(own));
  });
}

template <class T>
struct RowMaximumArguments : ProductionGrid {
  ProductionRows<T> rows;
  float* maximum;  // [rows]; -inf of no column
};

// The largest logit of a row; NaN is passed over here and shows in the sum.
template <class T, class Block>
TPCE_DEVICE void row_maximum(Block& block, const RowMaximumArguments<T>& arguments) {
  struct State {
    float maximum = -bit_cast<float>(std::uint32_t{0x7f800000});
  };
  const std::int64_t row = block.index();
  const bool is_ignored = arguments.rows.is_ignored(row);
  const RowVectors<T> logits(arguments.rows.row(row), is_ignored ? 0 : arguments.rows.classes);
  auto states = block.template registers<State>();
  block.phase(states, [&](int thread, State& state) {
    logits.walk(
        thread,
        [&](const Words4& words, std::int64_t) {
          TPCE_UNROLLED for (int i = 0; i < RowVectors<T>::kElements; ++i) {
            state.maximum = larger_of(Packed<T>::at(words, i), state.maximum);
          }
        },
        [&](float x, std::int64_t) { state.maximum = larger_of(x, state.maximum); });
  });
  const float maximum = block.reduce(
      states, [](const State& state) { return state.maximum; },
      [](float& into, const float& from) { into = larger_of(from, into); });
  block.phase(states, [&](int thread, State&) {
    if (thread == 0) arguments.maximum[row] = maximum;
  });
}

// An all-reduce over shards that are on one device, in the order of their ranks: what a library for collectives does
// between devices.
struct AllReduceArguments : RowGrid {
  enum class Op : std::int32_t { kMax, kSum };

  const float* of_rank;  // [ranks][rows]
  std::int64_t ranks;
  std::int64_t rows;
  float* into;  // [rows]
  Op op;
};

template <class Block>
TPCE_DEVICE void all_reduce(Block& block, const AllReduceArguments& arguments) {
  for_row(block, arguments.rows, [&](std::int64_t row) {
    float all = arguments.of_rank[row];
    for (std::int64_t rank = 1; rank < arguments.ranks; ++rank) {
      const float one = arguments.of_rank[rank * arguments.rows + row];
      all = arguments.op == AllReduceArguments::Op::kMax ? larger_of(one, all) : add_rn(all, one);
    }
    arguments.into[row] = all;
  });
}

}  // namespace tpce::gpu
