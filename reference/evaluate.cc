#include "reference/evaluate.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "reference/certified.h"
#include "reference/fp64.h"
#include "reference/multiprecision.h"
#include "reference/row.h"
#include "reference/row_evaluator.h"

namespace tpce::reference {
namespace {

using Losses = std::vector<std::unique_ptr<RowLoss>>;

// Rounding to nearest, and subnormals kept, whatever the calling thread has set.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&before_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t before_;
};

// Calls work(row) for every row. Of the rows that throw, the first one's exception is passed on.
template <class Work>
void for_each_row(std::int64_t rows, int threads, const Work& work) {
  if (threads == 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(rows));
  std::atomic<std::int64_t> next{0};
  const auto worker = [&] {
    const DefaultArithmetic scope;
    for (std::int64_t row = next++; row < rows; row = next++) {
      try {
        work(row);
      } catch (...) {
        errors[static_cast<std::size_t>(row)] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (std::int64_t i = 1; i < std::min<std::int64_t>(threads, rows); ++i) workers.emplace_back(worker);
    worker();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void check_all(const Inputs& inputs, const Method& method) {
  check(inputs.batch, inputs.options);
  check(method);
  const Upstream& upstream = inputs.upstream;
  if (!upstream.per_row.empty() && static_cast<std::int64_t>(upstream.per_row.size()) != inputs.batch.rows()) {
    throw std::invalid_argument("upstream: got " + std::to_string(upstream.per_row.size()) +
                                " values, expected one for each of " + std::to_string(inputs.batch.rows()) + " rows");
  }
  if (upstream.denominator < 1) {
    throw std::invalid_argument("upstream: got denominator " + std::to_string(upstream.denominator) +
                                ", expected at least 1");
  }
}

bool is_ignored(const Inputs& inputs, std::int64_t row) {
  return inputs.batch.labels[row] == inputs.options.ignore_index;
}

// Logits of one row, and its evaluator, which has seen all of them but the target's.
struct OpenRow {
  OpenRow(const Inputs& inputs, const Method& method, std::int64_t row)
      : logits(gather_row(inputs.batch, row)), label(inputs.batch.labels[row]) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (inputs.options.non_finite_row == NonFiniteRow::kError) {
      for (std::size_t i = 0; i < logits.size(); ++i) {
        if (logits[i] < infinity) continue;
        throw std::invalid_argument("logits: row " + std::to_string(row) + " has " +
                                    (std::isnan(logits[i]) ? "NaN" : "+inf") + " at class " + std::to_string(i) +
                                    ", expected finite values or -inf");
      }
      if (*std::max_element(logits.begin(), logits.end()) == -infinity) {
        throw std::invalid_argument("logits: row " + std::to_string(row) +
                                    " has nothing above -inf, expected a finite value");
      }
    }
    std::vector<double> others = logits;
    others.erase(others.begin() + label);
    evaluator = make_row_evaluator(tally_of(others), method);
  }

  double target() const { return logits[static_cast<std::size_t>(label)]; }

  std::vector<double> logits;  // [vocab]
  std::int64_t label;
  std::unique_ptr<RowEvaluator> evaluator;
};

std::unique_ptr<RowLoss> loss_of(RowEvaluator& row, double target, const Method& method, std::int64_t bits) {
  const bool needs_exp = !case_without_exp(row.tally(), target, Ratio{}) && std::isfinite(target);
  if (!needs_exp || method.precision == Precision::kFp64) return nullptr;
  if (method.precision == Precision::kMultiprecision) return static_cast<MultiprecisionRow&>(row).loss(target);
  return static_cast<CertifiedRow&>(row).enclose_loss(target, bits);
}

Value reduced_fp64(const std::vector<RowTruth>& rows, std::int64_t divisor) {
  std::vector<double> losses;
  for (const RowTruth& row : rows) losses.push_back(row.loss.fp64);
  Value value = exact_value(compensated_sum(losses) / static_cast<double>(divisor));
  value.certified = false;
  return value;
}

// Certified sums need enclosures narrow enough for the sum, not only for each row.
Value reduced_certified(const Inputs& inputs, const Method& method, Losses losses, std::int64_t divisor) {
  for (std::int64_t bits = Method::kMinBits;;) {
    const Value value = CertifiedRow::reduced(losses, divisor);
    if (value.certified || bits == method.max_bits) return value;
    bits = next_precision(bits, method.max_bits);
    for_each_row(inputs.batch.rows(), method.threads, [&](std::int64_t row) {
      auto& loss = losses[static_cast<std::size_t>(row)];
      if (!loss) return;
      const OpenRow open(inputs, method, row);
      loss = loss_of(*open.evaluator, open.target(), method, bits);
    });
  }
}

Value reduce(const Inputs& inputs, const Method& method, const Evaluation& evaluation, Losses losses) {
  const bool mean = inputs.options.reduction == Reduction::kMean;
  const std::int64_t divisor = mean ? evaluation.valid_rows : 1;
  if (divisor == 0) {
    return exact_value(inputs.options.empty_mean == EmptyMean::kNan ? std::numeric_limits<double>::quiet_NaN() : 0.0);
  }
  for (const RowTruth& row : evaluation.rows) {
    if (std::isnan(row.loss.fp64)) return row.loss;
  }
  for (std::size_t row = 0; row < losses.size(); ++row) {
    // A target at -inf. A finite loss beyond fp64 also rounds to +inf, but has a number to add.
    if (std::isinf(evaluation.rows[row].loss.fp64) && !losses[row]) return evaluation.rows[row].loss;
  }
  switch (method.precision) {
    case Precision::kFp64:
      return reduced_fp64(evaluation.rows, divisor);
    case Precision::kMultiprecision:
      return MultiprecisionRow::reduced(losses, divisor);
    case Precision::kCertified:
      break;
  }
  return reduced_certified(inputs, method, std::move(losses), divisor);
}

std::vector<Value> gradient_of(const Inputs& inputs, const Method& method, std::int64_t row) {
  const Value zero = exact_value(0.0);
  std::vector<Value> gradient(static_cast<std::size_t>(inputs.batch.plan.columns()), zero);
  if (is_ignored(inputs, row)) return gradient;
  OpenRow open(inputs, method, row);
  const Ratio upstream = inputs.upstream.at(row);
  const Value target = open.evaluator->evaluate(open.target(), upstream).target_gradient;
  if (std::isnan(target.fp64)) {
    std::fill_n(gradient.begin(), inputs.batch.vocab, target);
    return gradient;
  }
  const std::vector<Value> values = open.evaluator->gradients(open.target(), upstream);
  const std::vector<Repeated>& distinct = open.evaluator->tally().distinct;
  for (std::size_t i = 0; i < open.logits.size(); ++i) {
    const auto at = std::lower_bound(distinct.begin(), distinct.end(), open.logits[i],
                                     [](const Repeated& entry, double z) { return entry.value < z; });
    const bool listed = at != distinct.end() && at->value == open.logits[i];
    gradient[i] = listed ? values[static_cast<std::size_t>(at - distinct.begin())] : zero;
  }
  gradient[static_cast<std::size_t>(open.label)] = target;
  return gradient;
}

void store(const Value& value, double* out) { *out = value.fp64; }
template <class T>
void store(const Value& value, T* out) {
  round_to(value.fp32, out);
}

}  // namespace

Upstream upstream_of_reduction(const Labels& labels, const Options& options) {
  Upstream upstream;
  if (options.reduction != Reduction::kMean) return upstream;
  std::int64_t valid = 0;
  for (std::int64_t row = 0; row < labels.size(); ++row) valid += labels[row] != options.ignore_index ? 1 : 0;
  upstream.denominator = std::max<std::int64_t>(valid, 1);  // without valid rows no row asks for it
  return upstream;
}

Evaluation evaluate(const Inputs& inputs, const Method& method, const std::function<void()>& row_done) {
  check_all(inputs, method);
  const DefaultArithmetic scope;
  const std::int64_t rows = inputs.batch.rows();
  const bool reduces = inputs.options.reduction != Reduction::kNone;
  Evaluation evaluation;
  evaluation.rows.resize(static_cast<std::size_t>(rows));
  Losses losses(reduces ? static_cast<std::size_t>(rows) : 0);
  const auto evaluate_row = [&](std::int64_t row) {
    const auto i = static_cast<std::size_t>(row);
    if (is_ignored(inputs, row)) {
      const Value zero = exact_value(0.0);
      evaluation.rows[i] = {zero, zero, zero, true};
      return;
    }
    const OpenRow open(inputs, method, row);
    evaluation.rows[i] = open.evaluator->evaluate(open.target(), inputs.upstream.at(row));
    if (reduces) losses[i] = loss_of(*open.evaluator, open.target(), method, Method::kMinBits);
  };
  std::mutex reporting;
  for_each_row(rows, method.threads, [&](std::int64_t row) {
    evaluate_row(row);
    if (!row_done) return;
    const std::scoped_lock one_at_a_time(reporting);
    row_done();
  });
  for (const RowTruth& row : evaluation.rows) evaluation.valid_rows += row.ignored ? 0 : 1;
  if (reduces) evaluation.reduced = reduce(inputs, method, evaluation, std::move(losses));
  return evaluation;
}

std::vector<std::string> undecided(const Evaluation& evaluation, const Method& method) {
  std::vector<std::string> lines;
  const auto require = [&](const Value& value, const std::string& name) {
    if (!value.certified) lines.push_back(name + " not decided with " + std::to_string(method.max_bits) + " bits");
  };
  for (std::size_t i = 0; i < evaluation.rows.size(); ++i) {
    const std::string row = "row " + std::to_string(i) + ": ";
    require(evaluation.rows[i].loss, row + "loss");
    require(evaluation.rows[i].lse, row + "lse");
    require(evaluation.rows[i].target_gradient, row + "target gradient");
  }
  if (evaluation.reduced) require(*evaluation.reduced, "reduced loss");
  return lines;
}

std::vector<Value> row_gradient(const Inputs& inputs, const Method& method, std::int64_t row) {
  check_all(inputs, method);
  if (row < 0 || row >= inputs.batch.rows()) {
    throw std::invalid_argument("row: got " + std::to_string(row) + ", expected 0.." +
                                std::to_string(inputs.batch.rows() - 1));
  }
  const DefaultArithmetic scope;
  return gradient_of(inputs, method, row);
}

std::int64_t gradient(const Inputs& inputs, const Method& method, const Matrix& out) {
  check_all(inputs, method);
  const std::int64_t rows = inputs.batch.rows();
  const std::int64_t columns = inputs.batch.plan.columns();
  if (out.rows != rows || out.cols != columns || out.place.type != DeviceType::kCpu) {
    throw std::invalid_argument("gradient: got [" + std::to_string(out.rows) + ", " + std::to_string(out.cols) +
                                "], expected [" + std::to_string(rows) + ", " + std::to_string(columns) +
                                "] in host memory");
  }
  check_memory("gradient", out);
  std::atomic<std::int64_t> not_certified{0};
  for_each_row(rows, method.threads, [&](std::int64_t row) {
    const std::vector<Value> values = gradient_of(inputs, method, row);
    visit_dtype(out.dtype, [&](auto element) {
      auto* to = out.row<decltype(element)>(row);
      for (std::size_t i = 0; i < values.size(); ++i) store(values[i], to + i);
    });
    not_certified += std::count_if(values.begin(), values.end(), [](const Value& v) { return !v.certified; });
  });
  return not_certified;
}

}  // namespace tpce::reference
