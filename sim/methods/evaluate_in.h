// Runs a method's one template in the precision that is asked for.
#pragma once

#include <type_traits>
#include <vector>

#include "sim/methods/row.h"
#include "sim/precision/visit.h"

namespace tpce::sim {

// evaluate_row(row, upstream, gradient) takes a Row<Arithmetic> and Arithmetic's numbers, and returns the loss. The
// logits are loaded into the precision, the gradient is stored from it.
template <class EvaluateRow>
double evaluate_in(Precision precision, const Row<Fp32>& row, double upstream, std::span<double> gradient,
                   EvaluateRow&& evaluate_row) {
  return visit_precision(precision, [&](auto arithmetic) {
    using Arithmetic = decltype(arithmetic);
    using Real = typename Arithmetic::Real;
    std::vector<Real> logits(row.logits.size());
    for (std::size_t j = 0; j < logits.size(); ++j) logits[j] = Arithmetic::load(row.logits[j]);
    std::vector<Real> narrow(gradient.size());
    const Row<Arithmetic> loaded{row.plan, row.order, row.place, logits, row.target};
    const Real loss = evaluate_row(loaded, static_cast<Real>(upstream), std::span<Real>(narrow));
    for (std::size_t j = 0; j < narrow.size(); ++j) gradient[j] = Arithmetic::store(narrow[j]);
    return static_cast<double>(loss);
  });
}

}  // namespace tpce::sim
