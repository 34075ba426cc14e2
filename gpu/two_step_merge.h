// The merge of ranks by two reductions that a transport knows (docs/numerics.md, section 4): the maximum of unsigned
// keys, then the sum of integers. Three kernels, before, between and after the two; in each a thread takes a row.
#pragma once

#include "gpu/merge.h"

namespace tpce::gpu {

// Each flag of RowPartial is summed in bits of its own of one int64, so that the sum counts the ranks that have it. A
// maximum of flags would lose some, and none would tell that two ranks have the target.
inline constexpr int kFlags = 5;
inline constexpr int kBitsPerFlag = 12;
inline constexpr std::int64_t kMaxRanksCounted = (std::int64_t{1} << kBitsPerFlag) - 1;
static_assert((RowPartial::kTargetHere | RowPartial::kTargetTwice | RowPartial::kNotFinite | RowPartial::kIgnored |
               RowPartial::kBadLabel) == (1u << kFlags) - 1);
static_assert(kFlags * kBitsPerFlag < 64);

// What ranks take the maximum of.
struct RowKeys {
  std::uint32_t* max_logit = nullptr;
  std::uint32_t* target_logit = nullptr;  // 0 where the target is not here

  static constexpr std::size_t kBytesPerRow = 2 * sizeof(std::uint32_t);
  // One array: max_logit[rows], target_logit[rows].
  static RowKeys in(void* memory, std::int64_t rows) {
    auto* first = static_cast<std::uint32_t*>(memory);
    return {first, first + rows};
  }
};

// What ranks add up.
struct RowCounts {
  std::int64_t* d0 = nullptr;
  std::int64_t* d1 = nullptr;
  std::int64_t* d2 = nullptr;
  std::int64_t* flags = nullptr;

  static constexpr std::size_t kBytesPerRow = 4 * sizeof(std::int64_t);
  // One array: d0[rows], d1[rows], d2[rows], flags[rows].
  static RowCounts in(void* memory, std::int64_t rows) {
    auto* first = static_cast<std::int64_t*>(memory);
    return {first, first + rows, first + 2 * rows, first + 3 * rows};
  }
};

// The inverse of ordered_key().
TPCE_DEVICE_INLINE float logit_of_key(std::uint32_t key) {
  const std::uint32_t bits = key + 0x007fffffu;
  return bit_cast<float>((bits & 0x80000000u) != 0 ? bits ^ 0x80000000u : ~bits);
}

TPCE_DEVICE_INLINE std::int64_t counts_of_flags(std::uint32_t flags) {
  std::int64_t counts = 0;
  for (int i = 0; i < kFlags; ++i) counts |= std::int64_t{(flags >> i) & 1u} << (kBitsPerFlag * i);
  return counts;
}

TPCE_DEVICE_INLINE std::uint32_t flags_of_counts(std::int64_t counts) {
  std::uint32_t flags = 0;
  for (int i = 0; i < kFlags; ++i) {
    if (((counts >> (kBitsPerFlag * i)) & kMaxRanksCounted) != 0) flags |= 1u << i;
  }
  static_assert(RowPartial::kTargetHere == 1, "its count has the lowest bits");
  if ((counts & kMaxRanksCounted) > 1) flags |= RowPartial::kTargetTwice;
  return flags;
}

struct RowKeysArguments : RowGrid {
  Partials from;
  RowKeys into;
};

template <class Block>
TPCE_DEVICE void row_keys(Block& block, const RowKeysArguments& arguments) {
  for_row(block, arguments.from.rows, [&](std::int64_t row) {
    const RowPartial partial = arguments.from.load(row);
    const bool here = (partial.flags & RowPartial::kTargetHere) != 0;
    arguments.into.max_logit[row] = ordered_key(partial.max_logit);
    arguments.into.target_logit[row] = here ? ordered_key(partial.target_logit) : 0;
  });
}

struct AlignDigitsArguments : RowGrid {
  Partials from;
  RowKeys top;  // the maximum over ranks
  RowCounts into;
};

// What this rank adds to the digits of the row's top bin.
template <class Block>
TPCE_DEVICE void align_digits(Block& block, const AlignDigitsArguments& arguments) {
  for_row(block, arguments.from.rows, [&](std::int64_t row) {
    const RowPartial partial = arguments.from.load(row);
    const Digits digits = digits_below(partial, logit_of_key(arguments.top.max_logit[row]));
    arguments.into.d0[row] = digits.d0;
    arguments.into.d1[row] = digits.d1;
    arguments.into.d2[row] = digits.d2;
    arguments.into.flags[row] = counts_of_flags(partial.flags);
  });
}

struct JoinRowsArguments : RowGrid {
  RowKeys top;    // the maximum over ranks
  RowCounts sum;  // over ranks
  Partials into;
};

template <class Block>
TPCE_DEVICE void join_rows(Block& block, const JoinRowsArguments& arguments) {
  for_row(block, arguments.into.rows, [&](std::int64_t row) {
    RowPartial sum;
    sum.flags = flags_of_counts(arguments.sum.flags[row]);
    sum.max_logit = logit_of_key(arguments.top.max_logit[row]);
    if ((sum.flags & RowPartial::kTargetHere) != 0) sum.target_logit = logit_of_key(arguments.top.target_logit[row]);
    sum.digits = {arguments.sum.d0[row], arguments.sum.d1[row], arguments.sum.d2[row]};
    // What merge() makes of a row with such flags is written there alone.
    RowPartial merged;
    merge(merged, sum);
    arguments.into.store(row, merged);
  });
}

}  // namespace tpce::gpu
