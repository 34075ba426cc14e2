#include "sim/methods/all_gather_cross_entropy.h"

namespace tpce::sim {

double AllGatherCrossEntropy::evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                                       std::span<double> gradient) const {
  // A row's logits stand rank after rank, which is what the all-gather makes of them.
  return cross_entropy_.evaluate(precision, row, upstream, gradient);
}

std::vector<Collective> AllGatherCrossEntropy::collectives(const Problem& problem) const {
  const std::int64_t columns = (problem.vocab + problem.tp - 1) / problem.tp;
  return {{"logits", CollectiveOp::kAllGather, columns, problem.logits}};
}

MemoryLedger AllGatherCrossEntropy::ledger(const Problem& problem) const {
  const auto fp32 = [](const char* name) { return HeldTensor{name, Shape::kAllClasses, DType::kFloat32}; };
  const HeldTensor logits{"logits", Shape::kLocalClasses, problem.logits, Holder::kCaller};
  const HeldTensor gathered{"gathered logits", Shape::kAllClasses, problem.logits};
  const HeldTensor cast = fp32("gathered logits in fp32");
  const HeldTensor log_probs = fp32("log-probabilities");
  const HeldTensor grad_log_probs = fp32("gradient of the log-probabilities");
  const HeldTensor scaled = fp32("gradient in fp32");
  const HeldTensor whole{"gradient of the gathered logits", Shape::kAllClasses, problem.logits};
  const HeldTensor gradient{"gradient", Shape::kLocalClasses, problem.logits};
  return {eager_only(problem),
          {
              {"forward: all-gather", {logits, gathered}},
              {"forward: cast", {logits, gathered, cast}},
              {"forward: log_softmax", {logits, gathered, cast, log_probs}},
              {"backward: nll_loss", {log_probs, grad_log_probs}},
              {"backward: log_softmax", {log_probs, grad_log_probs, scaled}},
              {"backward: cast", {scaled, whole}},
              {"backward: own slice", {whole, gradient}},
          },
          {log_probs}};
}

}  // namespace tpce::sim
