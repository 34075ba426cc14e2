#include "sim/methods/megatron.h"

#include "sim/methods/evaluate_in.h"

namespace tpce::sim {
namespace {

template <class Arithmetic>
typename Arithmetic::Real evaluate_row(const Row<Arithmetic>& row, BufferPlace place_of_sum,
                                       typename Arithmetic::Real upstream,
                                       std::span<typename Arithmetic::Real> gradient) {
  using Real = typename Arithmetic::Real;
  const Real maximum = row.all_reduce_max();
  std::vector<Real> buffer(row.logits.begin(), row.logits.end());
  for (Real& value : buffer) value = value - maximum;
  const Real shifted_target = row.all_reduce_owned(buffer[row.target_index()]);
  for (Real& value : buffer) value = Arithmetic::exp(value);
  const Real sum_exp = row.all_reduce_sum(buffer, place_of_sum);
  const Real nll = Arithmetic::log(sum_exp) - shifted_target;

  for (Real& value : buffer) value = value / sum_exp;
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    gradient[j] = (j == row.target_index() ? buffer[j] - Real(1.0f) : buffer[j]) * upstream;
  }
  return nll;
}

}  // namespace

double Megatron::evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                          std::span<double> gradient) const {
  const BufferPlace place =
      form_ == Form::kFused ? BufferPlace{row.place.count + row.place.element, 2 * row.place.count} : row.place;
  const double nll = evaluate_in(precision, row, upstream, gradient, [&](const auto& in, auto scale, auto out) {
    return evaluate_row(in, place, scale, out);
  });
  if (form_ == Form::kFused) {
    for (double& g : gradient) g = static_cast<double>(Rounded<Bf16Format>(g));
  }
  return nll;
}

std::vector<Collective> Megatron::collectives(const Problem&) const {
  if (form_ == Form::kFused) {
    return {{"maximum", CollectiveOp::kMax}, {"shifted target logit and sum of exp", CollectiveOp::kSum, 2}};
  }
  return {{"maximum", CollectiveOp::kMax},
          {"shifted target logit", CollectiveOp::kSum},
          {"sum of exp", CollectiveOp::kSum}};
}

MemoryLedger Megatron::ledger(const Problem& problem) const {
  const auto per_row = [](const char* name) { return HeldTensor{name, Shape::kOnePerRow, DType::kFloat32}; };
  const HeldTensor logits{"logits", Shape::kLocalClasses, problem.logits, Holder::kCaller};
  const HeldTensor buffer{"softmax, made in place of the logits in fp32", Shape::kLocalClasses, DType::kFloat32};
  const HeldTensor maximum = per_row("maximum");
  const HeldTensor target = per_row("shifted target logit");
  const HeldTensor sum_exp = per_row("sum of exp");
  const HeldTensor gradient{"gradient", Shape::kLocalClasses,
                            form_ == Form::kFused ? DType::kBFloat16 : problem.logits};
  Problem described = problem;
  described.execution = form_ == Form::kFused ? Execution::kCompiled : Execution::kEager;
  return {described,
          {
              {"forward: cast, shift", {logits, buffer, maximum}},
              {"forward: exp and sums", {logits, buffer, maximum, target, sum_exp}},
              {"forward: divide", {logits, buffer, sum_exp}},
              {"backward: subtract, scale", {buffer}},
              {"backward: cast", {buffer, gradient}},
          },
          {buffer}};
}

}  // namespace tpce::sim
