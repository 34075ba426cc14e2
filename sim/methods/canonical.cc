#include "sim/methods/canonical.h"

#include <algorithm>

#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace tpce::sim {

double Canonical::evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                           std::span<double> gradient) const {
  check_precision(*this, precision);
  const std::int64_t vocab = static_cast<std::int64_t>(row.logits.size());
  std::vector<std::int64_t> widths;  // the row's plan without its padding
  for (std::int64_t rank = 0; rank < row.tp(); ++rank) {
    widths.push_back(static_cast<std::int64_t>(row.part(row.logits, rank).size()));
  }
  const ShardPlan plan = ShardPlan::from_widths(vocab, widths);
  std::vector<float> narrow(gradient.size());
  const ConstMatrix logits = matrix_of(row.logits.data(), 1, vocab);
  const Matrix gradients = matrix_of(narrow.data(), 1, static_cast<std::int64_t>(narrow.size()));
  std::vector<Shard> shards;
  std::vector<Matrix> parts;
  for (std::int64_t s = 0; s < plan.tp(); ++s) {
    shards.push_back({logits.column_range(plan.first_class(s), plan.width(s)), s});
    if (!narrow.empty()) parts.push_back(gradients.column_range(plan.first_class(s), plan.width(s)));
  }
  Options options;
  options.reduction = Reduction::kNone;
  options.ignore_index = -1;  // no class, so that no row is ignored
  ScalarBackend backend;
  SelfCommunicator self;
  float nll = 0.0f;
  const ForwardBackward arguments{.rows = {.nll = &nll}, .upstream = {upstream}, .gradients = parts};
  cross_entropy_forward_backward({plan, shards, Labels(&row.target, 1), vocab}, options, arguments, {backend, self});
  std::copy(narrow.begin(), narrow.end(), gradient.begin());
  return static_cast<double>(nll);
}

std::vector<Collective> Canonical::collectives(const Problem&) const {
  return {{"partial: maximum, three digits, target logit, flags", CollectiveOp::kMerge, 9}};
}

MemoryLedger Canonical::ledger(const Problem& problem) const {
  Problem compiled = problem;
  compiled.execution = Execution::kCompiled;
  // Saved for backward, so the method holds them after the caller has let go.
  const HeldTensor logits{"logits", Shape::kLocalClasses, problem.logits};
  const HeldTensor gradient{"gradient", Shape::kLocalClasses, problem.logits};
  const HeldTensor non_target{"probability of the others", Shape::kOnePerRow, DType::kFloat64};
  const HeldTensor sum{"sum of exp without the target", Shape::kOnePerRow, DType::kFloat64};
  const HeldTensor maximum{"largest other logit and status", Shape::kOnePerRow, DType::kFloat64};
  return {compiled,
          {{"forward: sums", {logits, non_target, sum, maximum}},
           {"backward: gradient", {logits, non_target, sum, maximum, gradient}}},
          {logits, non_target, sum, maximum}};
}

}  // namespace tpce::sim
