#include "sim/methods/stablemax.h"

#include "sim/methods/evaluate_in.h"

namespace tpce::sim {
namespace {

template <class Arithmetic>
typename Arithmetic::Real evaluate_row(const Row<Arithmetic>& row, typename Arithmetic::Real upstream,
                                       std::span<typename Arithmetic::Real> gradient) {
  using Real = typename Arithmetic::Real;
  const Real zero(0.0f), one(1.0f);
  std::vector<Real> weights;
  for (const Real& logit : row.logits) weights.push_back(logit < zero ? one / (one - logit) : logit + one);
  const Real sum = row.all_reduce_sum(weights);
  const Real target_prob = row.all_reduce_owned(weights[row.target_index()]) / sum;

  const Real of_prob = upstream / target_prob;
  const Real of_sum = of_prob * (target_prob / sum);
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    const Real of_weight = j == row.target_index() ? of_sum - of_prob / sum : of_sum;
    gradient[j] = row.logits[j] < zero ? of_weight * weights[j] * weights[j] : of_weight;
  }
  return -Arithmetic::log(target_prob);
}

}  // namespace

double StableMax::evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                           std::span<double> gradient) const {
  return evaluate_in(precision, row, upstream, gradient,
                     [](const auto& in, auto scale, auto out) { return evaluate_row(in, scale, out); });
}

std::vector<Collective> StableMax::collectives(const Problem&) const {
  return {{"sum of s", CollectiveOp::kSum}, {"s of the target", CollectiveOp::kSum}};
}

MemoryLedger StableMax::ledger(const Problem& problem) const {
  Problem compiled = problem;
  compiled.execution = Execution::kCompiled;
  // Saved for backward, so the method holds them after the caller has let go.
  const HeldTensor logits{"logits", Shape::kLocalClasses, problem.logits};
  const HeldTensor sum{"sum of s", Shape::kOnePerRow, DType::kFloat32};
  const HeldTensor target{"s of the target", Shape::kOnePerRow, DType::kFloat32};
  const HeldTensor gradient{"gradient", Shape::kLocalClasses, problem.logits};
  return {compiled,
          {{"forward: sums", {logits, sum, target}}, {"backward: gradient", {logits, sum, target, gradient}}},
          {logits, sum, target}};
}

}  // namespace tpce::sim
