// The margin sweep: every loss beside the certified value, from a wrong guess to a margin where exp(-m) leaves fp32.
//
// Conclusion: the usual losses are exactly 0 from a margin of about 16 on, with a target gradient of 0 while the other
// gradients are not; the softplus forms go on to about 97 to 103, where their terms underflow; the canonical loss stays
// within its bound until fp32 itself ends, at 103.97. Reproduce: tpce collapse --out .
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/studies/contender.h"
#include "sim/studies/first_zero.h"
#include "sim/studies/margin_row.h"

namespace tpce::sim {

struct CollapseProblem {
  // 64 times the largest vocabulary of a model; what is far beyond is a typing error that no memory holds.
  static constexpr std::int64_t kMaxVocab = 1 << 24;

  std::int64_t vocab = 1024;  // 2..kMaxVocab
  std::int64_t tp = 2;        // of the methods that know ranks, and of the canonical loss
  ReductionOrder order = {};
  // Those of one page's width. They stand for the others: Megatron's and the online losses fail as log_softmax does.
  std::vector<std::string> methods = {"log_softmax",   "softplus_eager",           "softplus_recompute",
                                      "cross_entropy", "all_gather_cross_entropy", "canonical"};
};

struct CollapsePoint {
  float target_logit = 0.0f;
  double margin = 0.0;  // of target_logit, which is the fp32 nearest to the wanted one
  CertifiedValues certified;
  std::vector<RowValues> values;  // one a contender
};

struct CollapseReport {
  CollapseProblem problem;
  std::vector<std::string> names;     // of the contenders
  std::vector<CollapsePoint> points;  // by rising margin
  // One a contender: where loss and target gradient become exactly 0.
  std::vector<std::optional<FirstZero>> first_zero_loss;
  std::vector<std::optional<FirstZero>> first_zero_target_grad;
  std::vector<OrderZero> by_order;  // of the legacy loss
};

// Margins from -20 to 104.5 in steps of 1/2, and those of which the text speaks: 16.6, 24 ln 2 and its neighbours in
// fp32, 16.7, 103.9, 103.97.
std::vector<double> collapse_margins();

// Throws std::invalid_argument where vocab or tp is out of range, std::runtime_error where a value is not certified.
CollapseReport study_collapse(const CollapseProblem& problem);

// Loss, target gradient and sum of gradients at chosen margins, and the first zeros: text of at most 120
// columns.
std::string collapse_table(const CollapseReport& report);

// One line for each margin and contender, the certified values among them:
// margin,target_logit,name,loss,loss_bits,target_grad,target_grad_bits,grad_sum,loss_ulp. loss_ulp is the distance from
// the certified loss in fp32 numbers.
std::string collapse_csv(const CollapseReport& report);

// The losses, target gradients and sums of gradients over the margin as SVG, drawn by gnuplot; throws as run_gnuplot
// does.
std::string collapse_svg(const CollapseReport& report);

}  // namespace tpce::sim
