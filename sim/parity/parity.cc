#include "sim/parity/parity.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "reference/row.h"
#include "reference/row_evaluator.h"
#include "tpce/checks.h"
#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace tpce::sim {
namespace {

// The label's logit minus the logsumexp of the other classes, in fp64; NaN where the row has none.
double margin_of_row(const Batch& batch, std::int64_t row) {
  std::vector<double> logits = reference::gather_row(batch, row);
  const auto target = logits.begin() + batch.labels[row];
  const double target_logit = *target;
  logits.erase(target);
  const auto evaluator =
      reference::make_row_evaluator(reference::tally_of(logits), {.precision = reference::Precision::kFp64});
  return target_logit - evaluator->evaluate(-std::numeric_limits<double>::infinity(), {}).lse.fp64;
}

// Made where there is none yet.
ValueParity& values_of(PairParity& pair, Quantity quantity) {
  auto& values = pair.quantities[static_cast<std::size_t>(quantity)];
  if (!values) values.emplace();
  return *values;
}

void count_collapsed(std::optional<std::int64_t>& count, const RowsResult& result, const RowsResult& witness) {
  for (std::size_t i = 0; count && i < result.loss.size(); ++i) {
    *count += result.loss[i] == 0.0f && witness.loss[i] != 0.0f ? 1 : 0;
  }
}

}  // namespace

std::string_view name_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::kLoss:
      return "loss";
    case Quantity::kLse:
      return "lse";
    case Quantity::kGradient:
      return "gradient";
    case Quantity::kFusedLoss:
      return "fused_loss";
    case Quantity::kFusedGradient:
      return "fused_gradient";
    case Quantity::kReducedLoss:
      return "reduced_loss";
    case Quantity::kGradientNorm:
      break;
  }
  return "gradient_norm";
}

bool PairParity::equal() const {
  return std::all_of(quantities.begin(), quantities.end(),
                     [](const auto& values) { return !values || values->equal(); });
}

std::uint64_t PairParity::max_ulp() const {
  std::uint64_t largest = 0;
  for (const auto& values : quantities) largest = std::max(largest, values ? values->max_ulp : 0);
  return largest;
}

std::optional<Quantity> PairParity::worst_quantity() const {
  std::optional<Quantity> worst;
  for (const Quantity quantity : kQuantities) {
    if (quantity == Quantity::kReducedLoss || quantity == Quantity::kGradientNorm) continue;
    if (!of(quantity) || !of(quantity)->worst) continue;
    if (!worst || is_worse(*of(quantity)->worst, *of(*worst)->worst)) worst = quantity;
  }
  return worst;
}

Parity::Parity(ParityRequest request) : request_(std::move(request)) {
  if (request_.tp.empty()) throw std::invalid_argument("tp: got none, expected at least one");
  for (const auto& b : request_.b) {
    for (const std::int64_t tp : request_.tp) {
      PairParity pair{.a = request_.a->name(), .b = b->name(), .tp = tp};
      pair.required = request_.require_equal || (request_.a->is_canonical() && b->is_canonical());
      values_of(pair, Quantity::kLoss);
      values_of(pair, Quantity::kGradient).dtype = request_.gradient_dtype;
      if (request_.witness != nullptr && request_.a->is_softmax()) pair.collapsed_a = 0;
      if (request_.witness != nullptr && b->is_softmax()) pair.collapsed_b = 0;
      pairs_.push_back(std::move(pair));
    }
  }
}

bool Parity::witness_is_a_side() const {
  return request_.witness == request_.a ||
         std::find(request_.b.begin(), request_.b.end(), request_.witness) != request_.b.end();
}

std::int64_t Parity::evaluations_a_row() const {
  std::int64_t count = request_.witness != nullptr && !witness_is_a_side() ? 1 : 0;
  for (std::size_t i = 0; i < sides(); ++i) {
    count += side(i).knows_tp() ? static_cast<std::int64_t>(request_.tp.size()) : 1;
  }
  return count;
}

void Parity::check(const ParityFile& file) const {
  if (file.vocab < 1 || file.vocab > file.columns) {
    throw std::invalid_argument(
        fmt::format("vocab: got {}, expected 1..{}, the columns of the logits", file.vocab, file.columns));
  }
  std::vector<ShardPlan> plans;  // made to be refused before any work
  for (const std::int64_t tp : request_.tp) plans.push_back(ShardPlan::even(file.columns, tp));
  // Of the whole file, so that the row of an error is its place there.
  check_labels({plans.front(), {}, file.labels, file.vocab}, file.options, ScalarBackend());
}

void Parity::begin(const ParityFile& file) {
  check(file);
  file_ = file;
  next_row_ = 0;
  totals_.assign(sides() * request_.tp.size(), {});
  std::int64_t valid = 0;
  for (std::int64_t i = 0; i < file.labels.size(); ++i) valid += file.labels[i] != file.options.ignore_index ? 1 : 0;
  divisor_ = file.options.reduction == Reduction::kMean ? valid : 1;
  files_.push_back({file.name, file.labels.size(), valid, file.vocab, file.dtype});
}

Parity::Result Parity::evaluate(Implementation& implementation, const ParityRows& rows) {
  auto result = std::make_shared<const RowsResult>(implementation.evaluate(rows));
  if (result->undecided > 0) undecided_[implementation.name()] += result->undecided;
  if (request_.evaluated) request_.evaluated(rows.batch.rows());
  return result;
}

void Parity::add(const ConstMatrix& logits) {
  if (next_row_ + logits.rows > file_.labels.size()) {
    throw std::invalid_argument(fmt::format("logits: got {} rows, expected at most the {} of the labels",
                                            next_row_ + logits.rows, file_.labels.size()));
  }
  const Labels labels = file_.labels.range(next_row_, logits.rows);
  std::vector<Result> results(sides());
  Result witness;
  for (std::size_t t = 0; t < request_.tp.size(); ++t) {
    const ShardPlan plan = ShardPlan::even(file_.columns, request_.tp[t]);
    std::vector<Shard> shards;
    for (std::int64_t s = 0; s < plan.tp(); ++s) {
      shards.push_back({logits.column_range(plan.first_class(s), plan.width(s)), s});
    }
    const Batch batch{plan, shards, labels, file_.vocab};
    const ParityRows rows{batch, file_.options, divisor_, request_.gradient_dtype};
    for (std::size_t i = 0; i < sides(); ++i) {
      if (!results[i] || side(i).knows_tp()) results[i] = evaluate(side(i), rows);
      if (results[i]->sum) {
        merge(totals(i, t).sum, *results[i]->sum, next_row_);
        merge(totals(i, t).squares, results[i]->squares);
      }
      if (request_.witness.get() == &side(i)) witness = results[i];
    }
    if (request_.witness != nullptr && !witness) {
      witness = evaluate(*request_.witness, {batch, file_.options, divisor_, std::nullopt});
    }
    for (std::size_t b = 0; b < request_.b.size(); ++b) {
      PairParity& one = pair(b, t);
      compare(one, *results[0], *results[b + 1], batch);
      if (!witness) continue;
      count_collapsed(one.collapsed_a, *results[0], *witness);
      count_collapsed(one.collapsed_b, *results[b + 1], *witness);
    }
  }
  next_row_ += logits.rows;
}

void Parity::add_losses(ValueParity& values, const std::vector<float>& a, const std::vector<float>& b) const {
  for (std::size_t i = 0; i < a.size(); ++i) {
    values.add({files_.size() - 1, next_row_ + static_cast<std::int64_t>(i), -1}, a[i], b[i]);
  }
}

void Parity::add_gradients(ValueParity& values, const Matrix& a, const Matrix& b) const {
  values.dtype = request_.gradient_dtype;
  visit_narrow_dtype(values.dtype, [&](auto element) {
    using Element = decltype(element);
    const auto columns = static_cast<std::size_t>(a.cols);
    for (std::int64_t i = 0; i < a.rows; ++i) {
      values.add_row<Element>({files_.size() - 1, next_row_ + i, 0}, {a.row<Element>(i), columns},
                              {b.row<Element>(i), columns});
    }
  });
}

void Parity::compare(PairParity& one, const RowsResult& a, const RowsResult& b, const Batch& batch) {
  const std::size_t file = files_.size() - 1;
  add_losses(values_of(one, Quantity::kLoss), a.loss, b.loss);
  if (!a.lse.empty() && !b.lse.empty()) add_losses(values_of(one, Quantity::kLse), a.lse, b.lse);
  add_gradients(values_of(one, Quantity::kGradient), a.gradient, b.gradient);
  if (a.fused && b.fused) {
    add_losses(values_of(one, Quantity::kFusedLoss), a.fused->loss, b.fused->loss);
    add_gradients(values_of(one, Quantity::kFusedGradient), a.fused->gradient, b.fused->gradient);
  }
  for (auto& values : one.quantities) {
    if (!values || !values->worst || values->worst->place.file != file) continue;
    DifferingPair& worst = *values->worst;
    const std::int64_t row = worst.place.row - next_row_;
    if (row < 0) continue;  // of an earlier part
    worst.label = batch.labels[row];
    if (*worst.label != file_.options.ignore_index) worst.margin = margin_of_row(batch, row);
  }
}

void Parity::finish() {
  if (next_row_ != file_.labels.size()) {
    throw std::invalid_argument(
        fmt::format("logits: got {} rows, expected the {} of the labels", next_row_, file_.labels.size()));
  }
  const ValuePlace place{files_.size() - 1};
  for (std::size_t b = 0; b < request_.b.size(); ++b) {
    if (!request_.a->is_canonical() || !request_.b[b]->is_canonical()) continue;
    for (std::size_t t = 0; t < request_.tp.size(); ++t) {
      const Totals &of_a = totals(0, t), &of_b = totals(b + 1, t);
      PairParity& one = pair(b, t);
      if (file_.options.reduction != Reduction::kNone) {
        const auto loss = [&](const Totals& sums) {
          return reduced_loss(sums.sum, file_.labels.size(), file_.options).value;
        };
        values_of(one, Quantity::kReducedLoss).add(place, loss(of_a), loss(of_b));
      }
      values_of(one, Quantity::kGradientNorm).add(place, gradient_norm(of_a.squares), gradient_norm(of_b.squares));
    }
  }
}

bool Parity::failed() const {
  return std::any_of(pairs_.begin(), pairs_.end(), [](const PairParity& one) { return one.failed(); });
}

}  // namespace tpce::sim
