#include "sim/methods/softplus_recompute.h"

#include "sim/methods/evaluate_in.h"

namespace tpce::sim {
namespace {

// What forward keeps of a row beside its logits.
template <class Real>
struct Saved {
  Real maximum;
  Real sum_exp;
  Real non_target_sum;
  Real target_exp;
};

template <class Arithmetic>
typename Arithmetic::Real forward(const Row<Arithmetic>& row, Saved<typename Arithmetic::Real>* saved) {
  using Real = typename Arithmetic::Real;
  saved->maximum = row.all_reduce_max();
  std::vector<Real> terms(row.logits.size());
  for (std::size_t j = 0; j < terms.size(); ++j) {
    terms[j] = j == row.target_index() ? Real(0.0f) : Arithmetic::exp(row.logits[j] - saved->maximum);
  }
  saved->non_target_sum = row.all_reduce_sum(terms);
  const Real shifted_target = row.all_reduce_owned(row.logits[row.target_index()] - saved->maximum);
  saved->target_exp = Arithmetic::exp(shifted_target);
  saved->sum_exp = saved->non_target_sum + saved->target_exp;
  return softplus<Arithmetic>(Arithmetic::log(saved->non_target_sum) - shifted_target);
}

template <class Arithmetic>
void backward(const Row<Arithmetic>& row, const Saved<typename Arithmetic::Real>& saved,
              typename Arithmetic::Real upstream, std::span<typename Arithmetic::Real> gradient) {
  using Real = typename Arithmetic::Real;
  const Real target_prob = saved.target_exp / saved.sum_exp;
  const Real target_gradient =
      target_prob < Real(0.25f) ? target_prob - Real(1.0f) : -(saved.non_target_sum / saved.sum_exp);
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    const Real slot =
        j == row.target_index() ? target_gradient : Arithmetic::exp(row.logits[j] - saved.maximum) / saved.sum_exp;
    gradient[j] = slot * upstream;
  }
}

}  // namespace

double SoftplusRecompute::evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                                   std::span<double> gradient) const {
  return evaluate_in(precision, row, upstream, gradient, [](const auto& in, auto scale, auto out) {
    Saved<decltype(scale)> saved;
    const auto nll = forward(in, &saved);
    backward(in, saved, scale, out);
    return nll;
  });
}

std::vector<Collective> SoftplusRecompute::collectives(const Problem&) const {
  return {{"maximum", CollectiveOp::kMax},
          {"sum of exp without the target", CollectiveOp::kSum},
          {"shifted target logit", CollectiveOp::kSum}};
}

MemoryLedger SoftplusRecompute::ledger(const Problem& problem) const {
  const auto fp32 = [](const char* name) { return HeldTensor{name, Shape::kLocalClasses, DType::kFloat32}; };
  const auto per_row = [](const char* name) { return HeldTensor{name, Shape::kOnePerRow, DType::kFloat32}; };
  // Saved for backward, so the method holds them after the caller has let go.
  const HeldTensor logits{"logits", Shape::kLocalClasses, problem.logits};
  const HeldTensor maximum = per_row("maximum");
  const HeldTensor sum_exp = per_row("sum of exp");
  const HeldTensor non_target = per_row("sum of exp without the target");
  const HeldTensor target = per_row("exp of the shifted target logit");
  const HeldTensor gradient{"gradient", Shape::kLocalClasses, problem.logits};

  MemoryLedger ledger{problem, {}, {logits, maximum, sum_exp, non_target, target}};
  if (problem.execution == Execution::kEager) {
    const HeldTensor exps = fp32("exp of shifted logits");
    const HeldTensor probs = fp32("probabilities, then gradient in fp32");
    ledger.phases = {
        {"forward: cast, shift, exp in place", {logits, maximum, exps}},
        {"forward: sums", {logits, maximum, exps, sum_exp, non_target, target}},
        {"backward: cast, shift, exp, divide, patch and scale in place",
         {logits, maximum, sum_exp, non_target, target, probs}},
        {"backward: cast", {logits, maximum, sum_exp, non_target, target, probs, gradient}},
    };
  } else {
    ledger.phases = {
        {"forward: sums", {logits, maximum, sum_exp, non_target, target}},
        {"backward: gradient", {logits, maximum, sum_exp, non_target, target, gradient}},
    };
  }
  return ledger;
}

}  // namespace tpce::sim
