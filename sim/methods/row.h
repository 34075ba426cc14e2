// One row of logits, cut over the ranks: what a method sees.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/methods/arithmetic.h"
#include "sim/order/reduction_order.h"
#include "sim/precision/fp32.h"
#include "tpce/shard_plan.h"

namespace tpce::sim {

template <class Arithmetic>
struct Row {
  using Real = typename Arithmetic::Real;

  const ShardPlan& plan;
  ReductionOrder order;
  BufferPlace place;             // of this row's entry in the [T, 1] buffers that are all-reduced
  std::span<const Real> logits;  // [vocab], rank after rank
  std::int64_t target = 0;       // in [0, vocab)

  std::int64_t tp() const { return plan.tp(); }
  std::size_t target_index() const { return static_cast<std::size_t>(target); }

  // A rank's part of a row-long buffer, without the padding; possibly empty.
  template <class Element>
  std::span<Element> part(std::span<Element> row, std::int64_t rank) const {
    const std::int64_t vocab = static_cast<std::int64_t>(row.size());
    const std::int64_t first = plan.first_class(rank) < vocab ? plan.first_class(rank) : vocab;
    const std::int64_t end = plan.first_class(rank + 1) < vocab ? plan.first_class(rank + 1) : vocab;
    return row.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
  }

  // MAX all-reduce of the ranks' maxima: exact, so its order does not matter.
  Real all_reduce_max() const {
    std::vector<Real> by_rank;
    for (std::int64_t rank = 0; rank < tp(); ++rank) by_rank.push_back(max_of(part(logits, rank)));
    return max_of(by_rank);
  }

  // Sum of a row-long buffer: each rank adds its part in order.classes, then SUM all-reduce in order.ranks.
  Real all_reduce_sum(std::span<const Real> terms) const { return all_reduce_sum(terms, place); }

  // The same where the ranks' sums stand elsewhere in the buffer that is reduced.
  Real all_reduce_sum(std::span<const Real> terms, BufferPlace place_of_sum) const {
    std::vector<Real> by_rank;
    for (std::int64_t rank = 0; rank < tp(); ++rank) by_rank.push_back(sum(order.classes, part(terms, rank)));
    return sim::all_reduce_sum(order.ranks, std::span<const Real>(by_rank), place_of_sum);
  }

  // SUM all-reduce of a value that one rank holds while the others contribute 0: exact, but -0 becomes +0.
  Real all_reduce_owned(Real value) const { return tp() == 1 ? value : value + Real(0.0f); }
};

}  // namespace tpce::sim
