#include "sim/methods/softplus_eager.h"

#include "sim/methods/evaluate_in.h"

namespace tpce::sim {
namespace {

template <class Arithmetic>
typename Arithmetic::Real evaluate_row(const Row<Arithmetic>& row, typename Arithmetic::Real upstream,
                                       std::span<typename Arithmetic::Real> gradient) {
  using Real = typename Arithmetic::Real;
  const Real maximum = row.all_reduce_max();
  std::vector<Real> buffer(row.logits.begin(), row.logits.end());
  for (Real& value : buffer) value = value - maximum;
  const Real shifted_target = row.all_reduce_owned(buffer[row.target_index()]);
  for (Real& value : buffer) value = Arithmetic::exp(value);
  buffer[row.target_index()] = Real(0.0f);
  const Real non_target_sum = row.all_reduce_sum(buffer);
  const Real target_exp = Arithmetic::exp(shifted_target);
  const Real sum_exp = non_target_sum + target_exp;
  const Real nll = softplus<Arithmetic>(Arithmetic::log(non_target_sum) - shifted_target);

  for (Real& value : buffer) value = value / sum_exp;
  const Real target_prob = target_exp / sum_exp;
  buffer[row.target_index()] = target_prob < Real(0.25f) ? target_prob - Real(1.0f) : -(non_target_sum / sum_exp);
  for (std::size_t j = 0; j < gradient.size(); ++j) gradient[j] = buffer[j] * upstream;
  return nll;
}

}  // namespace

double SoftplusEager::evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                               std::span<double> gradient) const {
  return evaluate_in(precision, row, upstream, gradient,
                     [](const auto& in, auto scale, auto out) { return evaluate_row(in, scale, out); });
}

std::vector<Collective> SoftplusEager::collectives(const Problem&) const {
  return {{"maximum", CollectiveOp::kMax},
          {"shifted target logit", CollectiveOp::kSum},
          {"sum of exp without the target", CollectiveOp::kSum}};
}

MemoryLedger SoftplusEager::ledger(const Problem& problem) const {
  const auto per_row = [](const char* name) { return HeldTensor{name, Shape::kOnePerRow, DType::kFloat32}; };
  const HeldTensor logits{"logits", Shape::kLocalClasses, problem.logits, Holder::kCaller};
  const HeldTensor buffer{"the one fp32 buffer", Shape::kLocalClasses, DType::kFloat32};
  const HeldTensor maximum = per_row("maximum");
  const HeldTensor target = per_row("shifted target logit");
  const HeldTensor non_target = per_row("sum of exp without the target");
  const HeldTensor sum_exp = per_row("sum of exp");
  const HeldTensor gradient{"gradient", Shape::kLocalClasses, problem.logits};
  return {eager_only(problem),
          {
              {"forward: cast, shift, exp", {logits, buffer, maximum, target}},
              {"forward: sums", {logits, buffer, maximum, target, non_target, sum_exp}},
              {"forward: divide, patch the target", {logits, buffer, target, non_target, sum_exp}},
              {"backward: scale", {buffer}},
              {"backward: cast", {buffer, gradient}},
          },
          {buffer}};
}

}  // namespace tpce::sim
