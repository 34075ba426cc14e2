#include "sim/methods/liger_vocab_parallel.h"

#include <algorithm>

#include "sim/methods/evaluate_in.h"

namespace tpce::sim {
namespace {

template <class Real>
Real sum_in_tiles(std::span<const Real> terms, std::size_t tile, const SumOrder& order) {
  Real total(0.0f);
  for (std::size_t first = 0; first < terms.size(); first += tile) {
    total = total + sum(order, terms.subspan(first, std::min(tile, terms.size() - first)));
  }
  return total;
}

template <class Arithmetic>
typename Arithmetic::Real evaluate_row(const Row<Arithmetic>& row, std::size_t tile, typename Arithmetic::Real upstream,
                                       std::span<typename Arithmetic::Real> gradient) {
  using Real = typename Arithmetic::Real;
  const Real maximum = row.all_reduce_max();
  const Real shifted_target = row.all_reduce_owned(row.logits[row.target_index()] - maximum);
  std::vector<Real> exps;
  for (const Real& logit : row.logits) exps.push_back(Arithmetic::exp(logit - maximum));
  std::vector<Real> by_rank;
  for (std::int64_t rank = 0; rank < row.tp(); ++rank) {
    by_rank.push_back(sum_in_tiles(row.part(std::span<const Real>(exps), rank), tile, row.order.classes));
  }
  const Real sum_exp = all_reduce_sum(row.order.ranks, std::span<const Real>(by_rank), row.place);
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    const Real prob = exps[j] / sum_exp;
    gradient[j] = (j == row.target_index() ? prob - Real(1.0f) : prob) * upstream;
  }
  return Arithmetic::log(sum_exp) - shifted_target;
}

}  // namespace

double LigerVocabParallel::evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                                    std::span<double> gradient) const {
  const std::size_t tile = static_cast<std::size_t>(tile_);
  return evaluate_in(precision, row, upstream, gradient,
                     [&](const auto& in, auto scale, auto out) { return evaluate_row(in, tile, scale, out); });
}

std::vector<Collective> LigerVocabParallel::collectives(const Problem&) const {
  return {{"maximum", CollectiveOp::kMax},
          {"shifted target logit", CollectiveOp::kSum},
          {"sum of exp", CollectiveOp::kSum}};
}

MemoryLedger LigerVocabParallel::ledger(const Problem& problem) const {
  const auto per_row = [](const char* name) { return HeldTensor{name, Shape::kOnePerRow, DType::kFloat32}; };
  const HeldTensor logits{"logits", Shape::kLocalClasses, problem.logits, Holder::kCaller};
  const HeldTensor exps{"exp of shifted logits", Shape::kLocalClasses, DType::kFloat32};
  const HeldTensor sum_exp = per_row("sum of exp");
  const HeldTensor gradient{"gradient", Shape::kLocalClasses, problem.logits};
  Problem compiled = problem;
  compiled.execution = Execution::kCompiled;
  return {compiled,
          {
              {"forward: maximum", {logits, per_row("maximum")}},
              {"forward: exp and sums", {logits, per_row("maximum"), exps, per_row("shifted target logit"), sum_exp}},
              {"backward: gradient in place", {exps, sum_exp}},
              {"backward: cast", {exps, sum_exp, gradient}},
          },
          {exps, sum_exp}};
}

}  // namespace tpce::sim
