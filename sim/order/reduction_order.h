// Every order that a method's bits depend on.
#pragma once

#include "sim/order/all_reduce_order.h"
#include "sim/order/sum_order.h"

namespace tpce::sim {

struct ReductionOrder {
  SumOrder classes = SumOrder::kLanes8;            // the terms of one row on one rank
  AllReduceOrder ranks = AllReduceOrder::kByRank;  // one value a rank
  SumOrder rows = SumOrder::kCascade;              // the losses of the rows, and the rows' sums of squares
};

}  // namespace tpce::sim
