#include "reference/row.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace tpce::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

double to_double(double x) { return x; }
template <class T>
double to_double(T x) {
  return static_cast<double>(widen(x));
}

}  // namespace

Tally tally_of(std::span<const double> non_targets) {
  Tally tally;
  std::vector<double> finite;
  finite.reserve(non_targets.size());
  for (double z : non_targets) {
    if (!(z < kInfinity)) {
      tally.not_finite = true;
      return tally;
    }
    if (z > -kInfinity) finite.push_back(z);
  }
  std::sort(finite.begin(), finite.end());
  for (double z : finite) {
    if (tally.distinct.empty() || tally.distinct.back().value != z) tally.distinct.push_back({z, 0});
    ++tally.distinct.back().count;
  }
  return tally;
}

Value exact_value(double value) {
  const double positive_zero = value + 0.0;
  return {positive_zero, static_cast<float>(positive_zero), true};
}

std::optional<RowTruth> case_without_exp(const Tally& others, double target, const Ratio& upstream) {
  const bool alone = others.distinct.empty();
  RowTruth truth;
  if (others.not_finite || !(target < kInfinity) || (alone && target == -kInfinity)) {
    truth.loss = truth.lse = truth.target_gradient = exact_value(kNan);
    return truth;
  }
  if (!alone) return std::nullopt;
  truth.loss = exact_value(0.0);
  truth.lse = exact_value(target);
  truth.target_gradient = exact_value(std::isfinite(upstream.numerator) ? 0.0 : kNan);
  return truth;
}

void check_memory(const std::string& name, const ConstMatrix& matrix) {
  if (matrix.row_stride < matrix.cols) {
    fail(name + ": row_stride is " + std::to_string(matrix.row_stride) + ", expected at least the width, " +
         std::to_string(matrix.cols));
  }
  if (matrix.data == nullptr && matrix.rows > 0 && matrix.cols > 0) fail(name + ": data is null");
}

void check(const Batch& batch, const Options& options) {
  const ShardPlan& plan = batch.plan;
  if (batch.vocab < 1 || batch.vocab > plan.columns()) {
    fail("vocab: got " + std::to_string(batch.vocab) + ", expected 1.." + std::to_string(plan.columns()));
  }
  if (batch.labels.place().type != DeviceType::kCpu) fail("labels: got device memory, expected host memory");
  if (batch.rows() < 0) fail("labels: got " + std::to_string(batch.rows()) + " of them, expected at least 0");
  if (batch.rows() > 0 && batch.labels.is_null()) fail("labels: data is null");
  std::vector<bool> held(static_cast<std::size_t>(plan.tp()), false);
  for (const Shard& shard : batch.shards) {
    if (shard.index < 0 || shard.index >= plan.tp()) {
      fail("shard: got index " + std::to_string(shard.index) + ", expected 0.." + std::to_string(plan.tp() - 1));
    }
    const std::string name = "shard " + std::to_string(shard.index);
    if (held[static_cast<std::size_t>(shard.index)]) fail(name + ": given twice, expected once");
    held[static_cast<std::size_t>(shard.index)] = true;
    if (shard.logits.place.type != DeviceType::kCpu) fail(name + ": got device memory, expected host memory");
    if (shard.logits.rows != batch.rows()) {
      fail(name + ": got " + std::to_string(shard.logits.rows) + " rows, expected one for each of " +
           std::to_string(batch.rows()) + " labels");
    }
    if (shard.logits.cols != plan.width(shard.index)) {
      fail(name + ": got " + std::to_string(shard.logits.cols) + " columns, expected " +
           std::to_string(plan.width(shard.index)));
    }
    check_memory(name, shard.logits);
  }
  for (std::int64_t index = 0; index < plan.tp(); ++index) {
    if (!held[static_cast<std::size_t>(index)] && plan.width(index) > 0) {
      fail("shard " + std::to_string(index) + ": missing; a reference needs every shard of a row");
    }
  }
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    const std::int64_t label = batch.labels[row];
    if (label == options.ignore_index || (label >= 0 && label < batch.vocab)) continue;
    fail("labels: row " + std::to_string(row) + " has " + std::to_string(label) + ", expected 0.." +
         std::to_string(batch.vocab - 1) + " or ignore_index " + std::to_string(options.ignore_index));
  }
}

std::vector<double> gather_row(const Batch& batch, std::int64_t row) {
  std::vector<double> logits(static_cast<std::size_t>(batch.vocab));
  for (const Shard& shard : batch.shards) {
    const std::int64_t first = batch.plan.first_class(shard.index);
    visit_dtype(shard.logits.dtype, [&](auto element) {
      const auto* from = shard.logits.row<decltype(element)>(row);
      for (std::int64_t i = 0; i < batch.classes_in(shard); ++i) {
        logits[static_cast<std::size_t>(first + i)] = to_double(from[i]);
      }
    });
  }
  return logits;
}

}  // namespace tpce::reference
