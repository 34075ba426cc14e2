// Orders in which an all-reduce adds one value a rank. With two ranks all agree, since addition is commutative; from
// three ranks on they differ.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "sim/order/sum_order.h"

namespace tpce::sim {

enum class AllReduceOrder : std::uint8_t { kByRank, kRing, kTree };

struct AllReduceOrderInfo {
  AllReduceOrder order;
  std::string_view name;
  std::string_view stands_for;
};

// The one list of the orders: names, help texts, studies and tests derive from it.
inline constexpr std::array<AllReduceOrderInfo, 3> kAllReduceOrders{{
    {AllReduceOrder::kByRank, "by_rank", "rank 0, 1, 2, ... in turn: gather and add, and one-shot kernels over NVLink"},
    {AllReduceOrder::kRing, "ring",
     "reduce-scatter around a ring, which starts each chunk at another rank (NCCL, gloo)"},
    {AllReduceOrder::kTree, "tree", "neighbours first, then pairs of pairs: recursive doubling (MPI, NCCL's trees)"},
}};

// Throws std::invalid_argument that lists the names.
AllReduceOrder all_reduce_order_from_name(std::string_view name);
std::string_view name_of(AllReduceOrder order);

// Where an element stands in the buffer that is reduced. A ring cuts the buffer into one chunk a rank of ceil(count /
// tp) elements, and starts the sum of chunk c at rank c; so the bits of a row depend on its place in the batch.
struct BufferPlace {
  std::int64_t element = 0;
  std::int64_t count = 1;
};

// The sum of one value a rank, as every rank receives it; 0 where there is no rank.
template <class Real>
Real all_reduce_sum(AllReduceOrder order, std::span<const Real> by_rank, BufferPlace place) {
  const std::size_t tp = by_rank.size();
  if (tp == 0) return Real(0.0f);
  switch (order) {
    case AllReduceOrder::kRing: {
      const std::int64_t ranks = static_cast<std::int64_t>(tp);
      const std::int64_t chunk = (place.count + ranks - 1) / ranks;
      const std::size_t first = static_cast<std::size_t>(place.element / chunk);
      Real total = by_rank[first];
      for (std::size_t step = 1; step < tp; ++step) total = total + by_rank[(first + step) % tp];
      return total;
    }
    case AllReduceOrder::kTree: {
      if (tp == 1) return by_rank[0];
      const std::size_t half = std::bit_floor(tp - 1);  // the largest power of two below tp
      return all_reduce_sum(order, by_rank.first(half), place) + all_reduce_sum(order, by_rank.subspan(half), place);
    }
    case AllReduceOrder::kByRank:
      break;
  }
  return sum_sequential(by_rank);
}

}  // namespace tpce::sim
