#include "sim/studies/first_zero.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace tpce::sim {
namespace {

// Maps fp32 numbers to integers in their order, -0 just below +0.
std::int64_t rank_of(float x) {
  const auto bits = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(x));
  return bits < 0x80000000 ? bits : std::int64_t{0x7fffffff} - bits;
}

float from_rank(std::int64_t rank) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(rank >= 0 ? rank : std::int64_t{0x7fffffff} - rank));
}

std::optional<FirstZero> first_zero(MarginRow& row, const std::function<bool(float)>& is_zero) {
  const std::optional<float> logit = first_float(row.target_logit(0.0), row.target_logit(120.0), is_zero);
  if (!logit) return std::nullopt;
  return FirstZero{*logit, row.margin(*logit)};
}

// A number that remembers what it is made of: run through the same templates as fp32, it tells which part of the sum
// meets the target's term at once.
struct Mass {
  Mass() = default;
  explicit Mass(float) {}  // an order's neutral 0
  Mass(double others, bool target) : others_mass(others), has_target(target) {}

  double others_mass = 0.0;  // of the other classes in this sum
  bool has_target = false;
  double largest_met = 0.0;  // the largest mass that was added to a sum with the target in it

  friend Mass operator+(const Mass& a, const Mass& b) {
    Mass sum(a.others_mass + b.others_mass, a.has_target || b.has_target);
    const double met = a.has_target ? b.others_mass : (b.has_target ? a.others_mass : 0.0);
    sum.largest_met = std::max({a.largest_met, b.largest_met, met});
    return sum;
  }
};

}  // namespace

std::optional<float> first_float(float low, float high, const std::function<bool(float)>& condition) {
  if (condition(low) || !condition(high)) return std::nullopt;
  std::int64_t no = rank_of(low), yes = rank_of(high);
  while (yes - no > 1) {
    const std::int64_t middle = no + (yes - no) / 2;
    (condition(from_rank(middle)) ? yes : no) = middle;
  }
  return from_rank(yes);
}

std::optional<FirstZero> first_zero_loss(const Contender& contender, MarginRow& row) {
  return first_zero(row, [&](float z) { return contender.evaluate(row.with(z), row.target()).loss == 0.0; });
}

std::optional<FirstZero> first_zero_target_grad(const Contender& contender, MarginRow& row) {
  return first_zero(row, [&](float z) { return contender.evaluate(row.with(z), row.target()).target_grad == 0.0; });
}

double largest_share(MarginRow& row, std::int64_t tp, ReductionOrder order) {
  const std::vector<float>& logits = row.with(0.0f);
  std::vector<Mass> terms;
  for (std::size_t j = 0; j < logits.size(); ++j) {
    const bool target = static_cast<std::int64_t>(j) == row.target();
    terms.emplace_back(target ? 0.0 : std::exp(static_cast<double>(logits[j]) - row.other_lse()), target);
  }
  const ShardPlan plan = ShardPlan::even(row.vocab(), tp);
  std::vector<Mass> by_rank;
  for (std::int64_t rank = 0; rank < tp; ++rank) {
    by_rank.push_back(
        sum(order.classes, std::span<const Mass>(terms).subspan(static_cast<std::size_t>(plan.first_class(rank)),
                                                                static_cast<std::size_t>(plan.width(rank)))));
  }
  return all_reduce_sum(order.ranks, std::span<const Mass>(by_rank), {}).largest_met;
}

std::vector<OrderZero> first_zero_by_order(MarginRow& row) {
  struct Ranks {
    std::int64_t tp;
    AllReduceOrder order;
  };
  constexpr Ranks kRanks[] = {{1, AllReduceOrder::kByRank},
                              {2, AllReduceOrder::kByRank},
                              {8, AllReduceOrder::kByRank},
                              {8, AllReduceOrder::kTree}};
  std::vector<OrderZero> zeros;
  for (const SumOrderInfo& classes : kSumOrders) {
    for (const Ranks& ranks : kRanks) {
      const ReductionOrder order{classes.order, ranks.order, SumOrder::kSequential};
      const Contender legacy = contender_of(method_from_name("log_softmax"), {ranks.tp, order});
      zeros.push_back({classes.order, ranks.order, ranks.tp, first_zero_loss(legacy, row).value().margin,
                       24 * std::numbers::ln2 + std::log(largest_share(row, ranks.tp, order))});
    }
  }
  return zeros;
}

}  // namespace tpce::sim
