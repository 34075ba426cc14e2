#include "sim/methods/log_softmax.h"

#include "sim/methods/evaluate_in.h"

namespace tpce::sim {
namespace {

template <class Arithmetic>
typename Arithmetic::Real evaluate_row(const Row<Arithmetic>& row, typename Arithmetic::Real upstream,
                                       std::span<typename Arithmetic::Real> gradient) {
  using Real = typename Arithmetic::Real;
  const Real maximum = row.all_reduce_max();
  std::vector<Real> log_probs(row.logits.size());
  std::vector<Real> exps(row.logits.size());
  for (std::size_t j = 0; j < log_probs.size(); ++j) {
    log_probs[j] = row.logits[j] - maximum;
    exps[j] = Arithmetic::exp(log_probs[j]);
  }
  const Real log_sum = Arithmetic::log(row.all_reduce_sum(exps));
  for (Real& value : log_probs) value = value - log_sum;

  for (std::size_t j = 0; j < gradient.size(); ++j) {
    const Real one_hot = j == row.target_index() ? Real(-1.0f) : Real(0.0f);
    gradient[j] = (one_hot + Arithmetic::exp(log_probs[j])) * upstream;
  }
  return -row.all_reduce_owned(log_probs[row.target_index()]);
}

}  // namespace

double LogSoftmax::evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                            std::span<double> gradient) const {
  return evaluate_in(precision, row, upstream, gradient,
                     [](const auto& in, auto scale, auto out) { return evaluate_row(in, scale, out); });
}

std::vector<Collective> LogSoftmax::collectives(const Problem&) const {
  return {{"maximum", CollectiveOp::kMax},
          {"sum of exp", CollectiveOp::kSum},
          {"log-probability of the target", CollectiveOp::kSum}};
}

MemoryLedger LogSoftmax::ledger(const Problem& problem) const {
  const auto fp32 = [](const char* name) { return HeldTensor{name, Shape::kLocalClasses, DType::kFloat32}; };
  const auto per_row = [](const char* name) { return HeldTensor{name, Shape::kOnePerRow, DType::kFloat32}; };
  const HeldTensor logits{"logits", Shape::kLocalClasses, problem.logits, Holder::kCaller};
  const HeldTensor cast = fp32("logits in fp32");
  const HeldTensor log_probs = fp32("log-probabilities");
  const HeldTensor maximum = per_row("maximum");
  const HeldTensor sum_exp = per_row("sum of exp");
  const HeldTensor one_hot = fp32("minus one-hot");
  const HeldTensor gradient{"gradient", Shape::kLocalClasses, problem.logits};

  MemoryLedger ledger{problem, {}, {log_probs}};
  if (problem.execution == Execution::kEager) {
    const HeldTensor shifted = fp32("shifted logits");
    const HeldTensor scaled = fp32("gradient in fp32");
    const HeldTensor exps = fp32("exp of log-probabilities");
    const HeldTensor difference = fp32("exp minus one-hot");
    ledger.phases = {
        {"forward: cast", {logits, cast}},
        {"forward: shift", {logits, cast, maximum, shifted}},
        {"forward: exp and sum", {logits, cast, maximum, shifted, fp32("exp of shifted logits"), sum_exp}},
        {"forward: log-probabilities", {logits, cast, maximum, shifted, sum_exp, log_probs}},
        {"backward: one-hot", {log_probs, one_hot}},
        {"backward: exp", {log_probs, one_hot, exps}},
        {"backward: add", {log_probs, one_hot, exps, difference}},
        {"backward: scale", {log_probs, one_hot, difference, scaled}},
        {"backward: cast", {scaled, gradient}},
    };
  } else {
    ledger.phases = {
        {"forward: sums", {logits, cast, maximum, sum_exp}},
        {"forward: log-probabilities", {logits, cast, maximum, sum_exp, log_probs}},
        {"backward: one-hot", {log_probs, one_hot}},
        {"backward: gradient over the one-hot", {log_probs, one_hot}},
        {"backward: cast", {one_hot, gradient}},
    };
  }
  return ledger;
}

}  // namespace tpce::sim
