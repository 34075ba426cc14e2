#include "sim/train/loss_head.h"

#include <cmath>
#include <stdexcept>

#include "sim/methods/method.h"
#include "simd/simd_backend.h"
#include "tpce/cross_entropy.h"

namespace tpce::sim {

namespace {

constexpr std::string_view kCanonical = "canonical";
// Another owner's executor.
class Borrowed final : public Executor {
 public:
  explicit Borrowed(Executor& executor) : executor_(executor) {}
  int threads() const override { return executor_.threads(); }
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& task) override {
    executor_.for_each(count, task);
  }

 private:
  Executor& executor_;
};

double sum_of_row(const float* gradients, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t j = 0; j < count; ++j) sum += static_cast<double>(gradients[j]);
  return sum;
}

RowResult result_of(float nll, const float* gradients, std::int64_t vocab, std::int32_t label) {
  return {nll, nll == 0.0f, gradients[label] == 0.0f, sum_of_row(gradients, vocab)};
}

class CanonicalHead final : public LossHead {
 public:
  explicit CanonicalHead(std::int64_t tp) : tp_(tp) {}

  HeadResult evaluate(const View<float>& logits, std::span<const std::int32_t> labels, Executor& executor) override {
    simd::SimdBackend backend({}, std::make_unique<Borrowed>(executor));
    SelfCommunicator self;
    const ShardPlan plan = ShardPlan::even(logits.cols, tp_);
    std::vector<Shard> shards;
    std::vector<Matrix> gradients;
    for (std::int64_t s = 0; s < tp_; ++s) {
      const Matrix whole{logits.data, DType::kFloat32, logits.rows, logits.cols, logits.stride, {}};
      gradients.push_back(whole.column_range(plan.first_class(s), plan.width(s)));
      shards.push_back({gradients.back(), s});
    }
    const Batch batch{plan, shards, Labels(labels.data(), logits.rows), logits.cols};
    std::vector<float> nll(labels.size());
    RowOutputs rows;
    rows.nll = nll.data();
    const Loss loss = cross_entropy_forward_backward(
        batch, {.ignore_index = -1}, {.rows = rows, .upstream = {}, .gradients = gradients, .squares = nullptr},
        {.backend = backend, .communicator = self, .rows_per_chunk = logits.rows, .queue = {}});
    HeadResult result{loss.value, std::vector<RowResult>(labels.size())};
    for_ranges(executor, logits.rows, 32, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = first; i < end; ++i) {
        const auto at = static_cast<std::size_t>(i);
        result.rows[at] = result_of(nll[at], logits.row(i), logits.cols, labels[at]);
      }
    });
    return result;
  }

 private:
  std::int64_t tp_;
};

// Sum and quotient as run() takes them: in fp32, and in fp64 where that is the precision.
template <class Real>
struct Mean {
  static double upstream(std::int64_t rows) { return static_cast<double>(Real(1) / static_cast<Real>(rows)); }
  static float of(const std::vector<double>& nll, SumOrder order) {
    const std::vector<Real> terms(nll.begin(), nll.end());
    return static_cast<float>(sum(order, std::span<const Real>(terms)) / static_cast<Real>(nll.size()));
  }
};

// The value with one NaN for all: the one that an operation makes differs between machines.
float canonical(float value) { return std::isnan(value) ? canonical_nan() : value; }

// A method of methods(), row by row over threads: run() does the same on one thread, and more that training does not
// want.
class MethodHead final : public LossHead {
 public:
  MethodHead(const Method& method, Precision precision, std::int64_t tp)
      : method_(method), precision_(precision), tp_(tp) {}

  HeadResult evaluate(const View<float>& logits, std::span<const std::int32_t> labels, Executor& executor) override {
    const bool wide = precision_ == Precision::kFp64;
    const ShardPlan plan = ShardPlan::even(logits.cols, tp_);
    const double upstream = wide ? Mean<double>::upstream(logits.rows) : Mean<float>::upstream(logits.rows);
    HeadResult result{0.0f, std::vector<RowResult>(labels.size())};
    std::vector<double> nll(labels.size());
    for_ranges(executor, logits.rows, 8, [&](std::int64_t first, std::int64_t end) {
      std::vector<double> gradient(static_cast<std::size_t>(logits.cols));
      for (std::int64_t i = first; i < end; ++i) {
        const auto at = static_cast<std::size_t>(i);
        float* values = logits.row(i);
        const Row<Fp32> row{plan, order_, {i, logits.rows}, {values, gradient.size()}, labels[at]};
        nll[at] = method_.evaluate(precision_, row, upstream, gradient);
        for (std::size_t j = 0; j < gradient.size(); ++j) values[j] = canonical(static_cast<float>(gradient[j]));
        result.rows[at] = result_of(static_cast<float>(nll[at]), values, logits.cols, labels[at]);
        result.rows[at].collapsed = nll[at] == 0.0;
      }
    });
    result.loss = canonical(wide ? Mean<double>::of(nll, order_.rows) : Mean<float>::of(nll, order_.rows));
    return result;
  }

 private:
  const Method& method_;
  Precision precision_;
  std::int64_t tp_;
  ReductionOrder order_;
};

}  // namespace

std::unique_ptr<LossHead> make_loss_head(const LossOptions& options) {
  ShardPlan::check_tp(options.tp);
  const Precision precision = precision_from_name(options.precision);
  const Method& method = method_from_name(options.method);
  check_precision(method, precision);
  // The method of that name adds row by row with the scalar backend; this one has its bits, and is faster.
  if (method.name() == kCanonical) return std::make_unique<CanonicalHead>(options.tp);
  if (method.one_rank_only() && options.tp != 1) {
    throw std::invalid_argument("tp: got " + std::to_string(options.tp) + ", expected 1, since method " +
                                options.method + " knows one rank");
  }
  return std::make_unique<MethodHead>(method, precision, options.tp);
}

bool is_free_of_tp(const LossOptions& options) { return method_from_name(options.method).is_order_free(); }

}  // namespace tpce::sim
