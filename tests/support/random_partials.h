// Partials of every class, as ranks may have them of one row.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tpce/row_partial.h"

namespace tpce::testing {

// [ranks] partials of one row. The target is with one rank, or with none, or with two.
inline std::vector<RowPartial> partials_of_row(std::mt19937_64& random, std::int64_t ranks) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int kColumns = 5;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto between = [&](float low, float high) {
    return low + (high - low) * static_cast<float>(below(1 << 20)) / static_cast<float>(1 << 20);
  };
  // Rows of one kind on all ranks, and mixed ones.
  const std::int64_t kind_of_row = below(12);
  const std::int64_t owner = below(4) == 0 ? -1 : below(ranks);
  const std::int64_t second_owner = below(8) == 0 ? below(ranks) : -1;
  std::vector<RowPartial> partials;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t kind = kind_of_row < 10 ? kind_of_row : below(kind_of_row == 10 ? 7 : 10);
    if (kind == 8) {
      partials.push_back(RowPartial::only_flags(RowPartial::kIgnored));
      continue;
    }
    if (kind == 9) {
      partials.push_back(RowPartial::only_flags(RowPartial::kBadLabel));
      continue;
    }
    float logits[kColumns];
    for (float& logit : logits) {
      switch (kind) {
        case 0:  // empty
          logit = -kInfinity;
          break;
        case 1:  // huge negative, with ties among ranks
          logit = -2e9f - 1e9f * static_cast<float>(below(2));
          break;
        case 2:  // grid, about one bin
          logit = between(-4.0f, 4.0f);
          break;
        case 3:  // grid, over many bins
          logit = between(-90.0f, 90.0f);
          break;
        case 4:  // grid, beyond the range of fp32's own exponentials
          logit = between(-1e6f, 1e6f);
          break;
        case 5:  // huge positive, with ties among ranks
          logit = 2e9f + 1e9f * static_cast<float>(below(2));
          break;
        case 6:  // both zeros
          logit = below(2) == 0 ? 0.0f : -0.0f;
          break;
        default:
          logit = below(6) == 0 ? (below(2) == 0 ? kInfinity : std::numeric_limits<float>::quiet_NaN()) : 1.0f;
      }
    }
    const bool here = rank == owner || rank == second_owner;
    const std::int64_t target = here ? below(kColumns) : -1;
    if (here && kind < 7 && below(4) == 0) logits[target] = below(2) == 0 ? -kInfinity : between(-3e9f, 3e9f);
    partials.push_back(row_partial(logits, kColumns, target));
  }
  return partials;
}

inline RowPartial merged(const std::vector<RowPartial>& partials) {
  RowPartial result = partials.front();
  for (std::size_t r = 1; r < partials.size(); ++r) merge(result, partials[r]);
  return result;
}

}  // namespace tpce::testing
