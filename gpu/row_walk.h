// How a block walks the logits of one row: each thread its own vectors of 16 bytes, tile by tile, through slots of
// shared memory that nobody else touches, into which the next tile is copied meanwhile. No thread waits for another
// before the row's end.
#pragma once

#include <cstdint>

#include "gpu/block.h"
#include "gpu/thread_sum.h"

namespace tpce::gpu {

// Columns of one row that a block walks.
template <class T>
struct Segment {
  const T* logits;
  std::int64_t count;
  std::int64_t target;  // -1: not among them
};

// A row is cut into tiles of kVectors vectors for each thread; what fills no tile, the rest; and the edges, values
// before the first and after the last whole 16 bytes. Each warp takes one stretch of a tile, so that the vectors of a
// thread lie within reach of one address.
template <class Logit, int kThreadsOfBlock = 128, int kVectorsOfTile = 8>
struct RowCut {
  using T = Logit;
  static constexpr int kThreads = kThreadsOfBlock;
  static constexpr int kWarp = 32;
  static constexpr int kVectors = kVectorsOfTile;
  static constexpr int kElements = Packed<T>::kElements;  // of a vector
  static constexpr int kTileValues = kVectors * kElements;
  static constexpr int kTileVectors = kVectors * kThreads;
  static constexpr int kStep = kWarp * kElements;  // from one vector of a thread to its next in a tile, in elements
  static constexpr int kTile = kTileVectors * kElements;
  static constexpr int kFlushed = 7;  // tiles are added between two flushes
  static_assert(kFlushed * kTileValues <= static_cast<int>(RegisterLane::kCapacity));

  const T* vectors;  // the first
  std::int64_t head;
  std::int64_t edges;
  int tiles;
  int rest;          // vectors
  int target;        // in which tile the target is, tiles: in the rest, -1: elsewhere
  int target_place;  // there, in elements

  TPCE_DEVICE_INLINE explicit RowCut(const Segment<T>& segment) {
    head = elements_to_aligned(segment.logits);
    head = head < segment.count ? head : segment.count;
    vectors = segment.logits + head;
    const std::int64_t count = (segment.count - head) / kElements;
    edges = segment.count - count * kElements;
    tiles = static_cast<int>(count / kTileVectors);
    rest = static_cast<int>(count % kTileVectors);
    const std::int64_t place = segment.target - head;
    const bool here = segment.target >= 0 && place >= 0 && place < count * kElements;
    target = here ? static_cast<int>(place / kTile) : -1;
    target_place = here ? static_cast<int>(place % kTile) : 0;
  }

  TPCE_DEVICE_INLINE std::int64_t edge(std::int64_t i) const {
    return i < head ? i : i + (std::int64_t{tiles} * kTileVectors + rest) * kElements;
  }

  // Where a thread's first vector of a tile is, and of the rest, whose vectors go round over all threads.
  static TPCE_DEVICE_INLINE int place_in_tile(int thread) {
    return (thread / kWarp * kVectors * kWarp + thread % kWarp) * kElements;
  }
  TPCE_DEVICE_INLINE int rest_of(int thread) const { return (rest + kThreads - 1 - thread) / kThreads; }

  // The slot of the target of a tile, or of the rest, where it is this thread's, else -1.
  TPCE_DEVICE_INLINE int target_slot(int thread) const {
    if (target < 0) return -1;
    const int vector = target_place / kElements;
    const bool in_rest = target == tiles;
    const int owner = in_rest ? vector % kThreads : vector / (kVectors * kWarp) * kWarp + vector % kWarp;
    const int v = in_rest ? vector / kThreads : vector / kWarp % kVectors;
    return owner == thread ? place_in_tile(thread) + v * kStep + target_place % kElements : -1;
  }
};

// Raises the thread's bin where the values or another thread's bin ask for it, and tells the others.
template <class Bins>
TPCE_DEVICE_INLINE void rise_with_row(ThreadSum& sum, float largest, const Bins& row_bin) {
  const std::int32_t known = row_bin.atomic_read(0);
  if (!sum.must_rise(largest, known)) return;
  sum.rise(largest, known);
  if (sum.bin > known) row_bin.atomic_max(0, sum.bin);
}

// Slots of shared memory for two tiles in turn.
struct TwoTiles {
  static constexpr int kAhead = 1;  // tiles that are under way beside the one that is added

  template <class Cut>
  static constexpr int kSlots = 2 * Cut::kTile;  // in elements
  template <class Cut>
  static TPCE_DEVICE_INLINE int rest(const Cut&) {
    return Cut::kTile;
  }
  template <class Cut>
  static TPCE_DEVICE_INLINE int after(int place) {
    return place ^ Cut::kTile;
  }
  template <class Cut>
  static TPCE_DEVICE_INLINE int ahead(int place) {
    return place ^ Cut::kTile;
  }
};

// Slots for a whole row, which stays there.
struct WholeRow {
  static constexpr int kAhead = 3;

  template <class Cut>
  static TPCE_DEVICE_INLINE int slots(const Cut& cut) {
    return (cut.tiles + (cut.rest > 0 ? 1 : 0)) * Cut::kTile;
  }
  template <class Cut>
  static TPCE_DEVICE_INLINE int rest(const Cut& cut) {
    return cut.tiles * Cut::kTile;
  }
  template <class Cut>
  static TPCE_DEVICE_INLINE int after(int place) {
    return place + Cut::kTile;
  }
  template <class Cut>
  static TPCE_DEVICE_INLINE int ahead(int place) {
    return place + kAhead * Cut::kTile;
  }
};

// One thread on its way through a row.
template <class Cut, class Slots, class Block, class View, class Bins>
struct ThreadWalk {
  using T = typename Cut::T;

  Block& block;
  View slots;
  Bins row_bin;
  ThreadSum& sum;

  TPCE_DEVICE_INLINE void add_row(const Segment<T>& segment, const Cut& cut, int thread) {
    const int place = Cut::place_in_tile(thread);
    const int rest = cut.rest_of(thread);
    const int target_slot = cut.target_slot(thread);
    const int target_number = target_slot >= 0 ? cut.target + 1 : 0;  // of its tile, the first being 1

    // The rest goes first.
    const int rest_place = Slots::rest(cut);
    const T* from = cut.vectors + std::int64_t{cut.tiles} * Cut::kTile + thread * Cut::kElements;
    TPCE_ROLLED for (int v = 0; v < rest; ++v) {
      block.copy_async(slots, rest_place + place + v * Cut::kStep, from + v * Cut::kThreads * Cut::kElements);
    }
    block.commit_copies();
    from = cut.vectors + place + kMiddle;
    TPCE_ROLLED for (int tile = 0; tile < Slots::kAhead; ++tile) {
      if (tile < cut.tiles) copy_tile(place + tile * Cut::kTile, from);
      from += Cut::kTile;
      block.commit_copies();
    }
    for (std::int64_t i = thread; i < cut.edges; i += Cut::kThreads) {
      const std::int64_t j = cut.edge(i);
      if (j != segment.target) add_value(widen(segment.logits[j]));
    }
    block.template wait_for_copies<Slots::kAhead>();
    add_any(rest_place + place, rest, target_number == cut.tiles + 1 ? rest_place + target_slot : -1);
    sum.flush();

    static_assert((Cut::kTile & (Cut::kTile - 1)) == 0);
    int now = place;
    for (int tile = 0; tile < cut.tiles;) {
      const int end = tile + Cut::kFlushed < cut.tiles ? tile + Cut::kFlushed : cut.tiles;
      TPCE_ROLLED while (tile < end) {
        ++tile;  // counts this one from here on
        if (tile + (Slots::kAhead - 1) < cut.tiles) copy_tile(Slots::template ahead<Cut>(now), from);
        from += Cut::kTile;
        block.commit_copies();
        block.template wait_for_copies<Slots::kAhead>();
        add_tile(now, tile == target_number, target_slot - place);
        now = Slots::template after<Cut>(now);
      }
      sum.flush();
    }
    block.template wait_for_copies<0>();
  }

 private:
  // An asynchronous copy reaches less than 2 KiB to either side of an address: a thread's vectors of a tile from their
  // middle.
  static constexpr int kMiddle = Cut::kVectors / 2 * Cut::kStep;

  // From the tile's middle.
  TPCE_DEVICE_INLINE void copy_tile(int to, const T* from) const {
    TPCE_UNROLLED for (int v = 0; v < Cut::kVectors; ++v) {
      block.copy_async(slots, to + v * Cut::kStep, from + (v * Cut::kStep - kMiddle));
    }
  }

  // Adds a whole tile, at once where every thread that runs beside this one needs all digits and nothing else. The
  // target, where the tile has it, is that far from the first slot.
  TPCE_DEVICE_INLINE void add_tile(int first, bool has_target, int target_distance) {
    Words4 words[Cut::kVectors];
    TPCE_UNROLLED for (int v = 0; v < Cut::kVectors; ++v) words[v] = slots.read_16(first + v * Cut::kStep);
    const auto vectors = [&](int v) { return words[v]; };
    const Largest<T> largest = largest_of<T>(Cut::kVectors, vectors);
    const std::int32_t known = row_bin.atomic_read(0);
    float max = largest.extremes().max;
    if (!block.all_agree(!largest.all_negative() && sum.is_plain(largest.extremes(), known) && !has_target)) {
      const Extremes extremes = extremes_of<T>(Cut::kVectors, vectors);
      max = extremes.max;
      if (!block.all_agree(sum.is_plain(extremes, known) && !has_target)) {
        return add_any(first, Cut::kVectors, has_target ? first + target_distance : -1);
      }
    }
    sum.max = larger_of(max, sum.max);
    TPCE_UNROLLED for (int v = 0; v < Cut::kVectors; ++v) sum.add_packed<T, 3, false>(words[v]);
    sum.take_bias<3>(Cut::kTileValues);
  }

  // Adds `count` vectors, whatever they hold, but for the target, whose slot is given, or -1.
  TPCE_DEVICE_INLINE void add_any(int first, int count, int target_slot) {
    if (target_slot >= 0) {
      T nothing;
      round_to(-bit_cast<float>(std::uint32_t{0x7f800000}), &nothing);
      slots.write(target_slot, nothing);
    }
    std::uint32_t needs = 0;
    if (count > 0) {
      const Extremes extremes = extremes_of<T>(count, [&](int v) { return slots.read_16(first + v * Cut::kStep); });
      sum.max = larger_of(extremes.max, sum.max);
      rise_with_row(sum, extremes.max, row_bin);
      needs = sum.needs(extremes);
    }
    needs = block.joined_bits(needs);
    if ((needs & 3u) == 0) return;
    if ((needs & ThreadSum::kNeedsClamp) != 0) return add_vectors<3, true>(first, count);
    switch (needs & 3u) {
      case 1:
        return add_vectors<1, false>(first, count);
      case 2:
        return add_vectors<2, false>(first, count);
      default:
        return add_vectors<3, false>(first, count);
    }
  }

  template <int kDigits, bool kClamp>
  TPCE_DEVICE_INLINE void add_vectors(int first, int count) {
    TPCE_ROLLED for (int v = 0; v < count; ++v)
        sum.add_packed<T, kDigits, kClamp>(slots.read_16(first + v * Cut::kStep));
    sum.take_bias<kDigits>(count * Cut::kElements);
  }

  // One value by itself.
  TPCE_DEVICE_INLINE void add_value(float x) {
    sum.max = larger_of(x, sum.max);
    rise_with_row(sum, x, row_bin);
    if ((sum.needs({x, x}) & 3u) == 0) return;
    sum.add_biased<3, true>(x, sum.form.clamp);  // at the clamp all digits are zero
    sum.take_bias<3>(2);
  }
};

}  // namespace tpce::gpu
