#include "sim/methods/cross_entropy.h"

#include "sim/methods/evaluate_in.h"

namespace tpce::sim {
namespace {

template <class Arithmetic>
typename Arithmetic::Real evaluate_row(const Row<Arithmetic>& row, typename Arithmetic::Real upstream,
                                       std::span<typename Arithmetic::Real> gradient) {
  using Real = typename Arithmetic::Real;
  const Real maximum = max_of(row.logits);
  std::vector<Real> exps(row.logits.size());
  for (std::size_t j = 0; j < exps.size(); ++j) exps[j] = Arithmetic::exp(row.logits[j] - maximum);
  const Real log_sum = Arithmetic::log(sum(row.order.classes, std::span<const Real>(exps)));

  // ΣG has one term that is not 0, so it is exact in every order.
  const Real grad_sum = -upstream;
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    const Real log_prob = row.logits[j] - maximum - log_sum;
    const Real grad = j == row.target_index() ? -upstream : Real(0.0f);
    gradient[j] = grad - Arithmetic::exp(log_prob) * grad_sum;
  }
  return -(row.logits[row.target_index()] - maximum - log_sum);
}

}  // namespace

double CrossEntropy::evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                              std::span<double> gradient) const {
  return evaluate_in(precision, row, upstream, gradient,
                     [](const auto& in, auto scale, auto out) { return evaluate_row(in, scale, out); });
}

std::vector<Collective> CrossEntropy::collectives(const Problem&) const { return {}; }

MemoryLedger CrossEntropy::ledger(const Problem& problem) const {
  const auto fp32 = [](const char* name) { return HeldTensor{name, Shape::kAllClasses, DType::kFloat32}; };
  const HeldTensor logits{"logits", Shape::kAllClasses, problem.logits, Holder::kCaller};
  const HeldTensor cast = fp32("logits in fp32");
  const HeldTensor log_probs = fp32("log-probabilities");
  const HeldTensor grad_log_probs = fp32("gradient of the log-probabilities");
  const HeldTensor scaled = fp32("gradient in fp32");
  const HeldTensor gradient{"gradient", Shape::kAllClasses, problem.logits};
  return {eager_only(problem),
          {
              {"forward: cast", {logits, cast}},
              {"forward: log_softmax", {logits, cast, log_probs}},
              {"backward: nll_loss", {log_probs, grad_log_probs}},
              {"backward: log_softmax", {log_probs, grad_log_probs, scaled}},
              {"backward: cast", {scaled, gradient}},
          },
          {log_probs}};
}

}  // namespace tpce::sim
