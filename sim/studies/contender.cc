#include "sim/studies/contender.h"

#include <vector>

namespace tpce::sim {

RowValues evaluate_row(const Method& method, const Setting& setting, std::span<const float> logits, std::int64_t target,
                       std::span<double> gradient) {
  check_precision(method, setting.precision);
  const ShardPlan plan =
      ShardPlan::even(static_cast<std::int64_t>(logits.size()), method.one_rank_only() ? 1 : setting.tp);
  std::vector<double> own(gradient.empty() ? logits.size() : 0);
  const std::span<double> out = gradient.empty() ? std::span<double>(own) : gradient;
  const Row<Fp32> row{plan, setting.order, {}, logits, target};
  RowValues values;
  values.loss = method.evaluate(setting.precision, row, 1.0, out);
  values.target_grad = out[row.target_index()];
  for (const double g : out) values.grad_sum += g;
  return values;
}

Contender contender_of(const Method& method, const Setting& setting) {
  check_precision(method, setting.precision);
  return {std::string(method.name()), [&method, setting](std::span<const float> logits, std::int64_t target) {
            return evaluate_row(method, setting, logits, target);
          }};
}

}  // namespace tpce::sim
