// Where a loss becomes exactly 0, found by running it; and why it does so there.
//
// Conclusion: the usual loss is 0 from the margin 24 ln 2 + ln(s) on, where s is the largest share of the other
// classes' sum that is added to the target's 1 in one piece. With one other class, or where the target is added last, s
// = 1 and the margin is 16.6355; a register folded by halves has s = 1/2 and 15.94; eight ranks added in turn have s =
// 1/8 and 14.56. docs/collapse.md derives it; first_zero_test measures it for each order.
#pragma once

#include <functional>
#include <optional>

#include "sim/studies/contender.h"
#include "sim/studies/margin_row.h"

namespace tpce::sim {

struct FirstZero {
  float target_logit = 0.0f;  // the smallest fp32 at which the value is 0
  double margin = 0.0;
};

// The smallest fp32 in (low, high] at which condition holds, by bisection over the fp32 numbers; condition must not
// hold at low, must hold at high, and must change once. Nothing where it already holds at low or does not hold at high.
std::optional<float> first_float(float low, float high, const std::function<bool(float)>& condition);

// The first margin at which loss, or target gradient, is exactly 0. The search begins at margin 0 and ends at 120,
// beyond exp(-m) in fp32. A loss falls as the margin grows, so it becomes 0 once.
std::optional<FirstZero> first_zero_loss(const Contender& contender, MarginRow& row);
std::optional<FirstZero> first_zero_target_grad(const Contender& contender, MarginRow& row);

// The largest share, in (0, 1], of the other classes' sum that meets the target's term in one addition, when tp even
// shards are added in the given order and this row stands alone in its batch.
double largest_share(MarginRow& row, std::int64_t tp, ReductionOrder order);

// Where the legacy loss becomes 0 in one order: found by running it, and as 24 ln 2 + ln(largest_share).
struct OrderZero {
  SumOrder classes;
  AllReduceOrder ranks;
  std::int64_t tp = 1;
  double margin = 0.0;
  double predicted = 0.0;
};

// Every order of the classes on one rank, on two, and on eight added by rank and in a tree. The row must lose its loss
// between margin 0 and 120, as every row does.
std::vector<OrderZero> first_zero_by_order(MarginRow& row);

}  // namespace tpce::sim
