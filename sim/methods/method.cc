#include "sim/methods/method.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "sim/methods/all_gather_cross_entropy.h"
#include "sim/methods/canonical.h"
#include "sim/methods/cross_entropy.h"
#include "sim/methods/liger_vocab_parallel.h"
#include "sim/methods/log_softmax.h"
#include "sim/methods/megatron.h"
#include "sim/methods/online.h"
#include "sim/methods/softplus_eager.h"
#include "sim/methods/softplus_recompute.h"
#include "sim/methods/stablemax.h"
#include "sim/order/names.h"
#include "tpce/binned_sum.h"
#include "tpce/checks.h"
#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace tpce::sim {
namespace {

struct Named {
  std::string_view name;
  const Method* method;
};

// Position in the batch of each rank's shard; check_batch has seen that each is there once.
std::vector<std::size_t> shards_by_rank(const Batch& batch) {
  std::vector<std::size_t> by_rank(batch.shards.size());
  for (std::size_t i = 0; i < by_rank.size(); ++i) by_rank[static_cast<std::size_t>(batch.shards[i].index)] = i;
  return by_rank;
}

void check(const Method& method, const MethodInput& input) {
  const ScalarBackend host;
  check_logits_dtype(input.batch, method.name());
  check_batch(input.batch, input.options, host, SelfCommunicator());
  check_gradients(input.batch, input.gradients, host);
  if (method.one_rank_only() && input.batch.plan.tp() != 1) {
    throw std::invalid_argument(
        "tp: got " + std::to_string(input.batch.plan.tp()) + ", expected 1, since method " +
        std::string(method.name()) +
        " knows one rank; over ranks there are all_gather_cross_entropy and liger_vocab_parallel");
  }
  check_precision(method, input.precision);
  if (input.upstream.per_row != nullptr && input.options.reduction != Reduction::kNone) {
    throw std::invalid_argument("upstream: got one value a row with reduction " +
                                std::string(name_of(input.options.reduction)) + ", expected a scalar");
  }
}

// Widens a shard's columns of one row to fp32; padding is left out.
void read(const Shard& shard, std::int64_t row, std::span<float> into) {
  visit_narrow_dtype(shard.logits.dtype, [&](auto element) {
    const auto* from = shard.logits.row<decltype(element)>(row);
    for (std::size_t j = 0; j < into.size(); ++j) into[j] = widen(from[j]);
  });
}

// Rounds to the gradient's type; a number of that type keeps its bits, zeros of either sign among them. Padding gets 0.
void write(const Matrix& gradient, std::int64_t row, std::span<const double> from) {
  visit_dtype(gradient.dtype, [&](auto element) {
    using Element = decltype(element);
    Element* to = gradient.row<Element>(row);
    for (std::size_t j = 0; j < static_cast<std::size_t>(gradient.cols); ++j) {
      const double value = j < from.size() ? from[j] : 0.0;
      if constexpr (std::is_floating_point_v<Element>) {
        to[j] = static_cast<Element>(value);
      } else {
        round_to(static_cast<float>(value), &to[j]);
      }
    }
  });
}

// As the canonical loss has it: such a row has no loss.
void refuse_non_finite(std::span<const float> logits, std::int64_t row) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::string name = "logits: row " + std::to_string(row);
  if (std::any_of(logits.begin(), logits.end(), [](float x) { return !(x < kInfinity); })) {
    throw std::invalid_argument(name + " holds NaN or +inf, expected less");
  }
  if (std::all_of(logits.begin(), logits.end(), [](float x) { return x == -kInfinity; })) {
    throw std::invalid_argument(name + " has nothing above -inf, expected a finite value");
  }
}

// The value with one NaN for all: the one that an operation makes differs between machines.
double canonical(double value) { return std::isnan(value) ? static_cast<double>(canonical_nan()) : value; }

// Sums over rows and the gradient norm as trainers take them, in fp32 or fp64, each addition in its stated order.
template <class Real>
class OrderedSums {
 public:
  explicit OrderedSums(const MethodInput& input)
      : order_(input.order),
        by_rank_(static_cast<std::size_t>(input.batch.plan.tp()),
                 std::vector<Real>(static_cast<std::size_t>(input.batch.rows()))) {}

  static double quotient(double value, std::int64_t rows) {
    return static_cast<double>(static_cast<Real>(value) / static_cast<Real>(rows));
  }

  // Squares of a row's gradient, rank by rank.
  void add_squares(const Row<Fp32>& row, std::int64_t index, std::span<double> gradient) {
    for (std::int64_t rank = 0; rank < row.tp(); ++rank) {
      std::vector<Real> squares;
      for (const double g : row.part(gradient, rank)) squares.push_back(static_cast<Real>(g) * static_cast<Real>(g));
      by_rank_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index)] =
          sum(order_.classes, std::span<const Real>(squares));
    }
  }

  double norm() const {
    std::vector<Real> ranks;
    for (const auto& rows : by_rank_) ranks.push_back(sum(order_.rows, std::span<const Real>(rows)));
    return static_cast<double>(std::sqrt(all_reduce_sum(order_.ranks, std::span<const Real>(ranks), {})));
  }

  double total(std::span<const double> nll) const {
    std::vector<Real> rows;
    for (const double value : nll) rows.push_back(static_cast<Real>(value));
    return static_cast<double>(sum(order_.rows, std::span<const Real>(rows)));
  }

 private:
  ReductionOrder order_;
  std::vector<std::vector<Real>> by_rank_;
};

// The same without an order (docs/numerics.md, sections 3 and 5), rounded to fp32 at the end.
class OrderFreeSums {
 public:
  explicit OrderFreeSums(const MethodInput&) {}

  static double quotient(double value, std::int64_t rows) { return value / static_cast<double>(rows); }

  void add_squares(const Row<Fp32>&, std::int64_t, std::span<double> gradient) {
    for (const double g : gradient) add_square(squares_, static_cast<float>(g));
  }

  double norm() const { return static_cast<double>(gradient_norm(squares_)); }

  double total(std::span<const double> nll) const {
    BinnedSum sum;
    for (const double value : nll) add(sum, static_cast<float>(value));
    return value_of(sum);
  }

 private:
  BinnedSum squares_;
};

template <class Sums>
std::optional<double> reduce(const MethodInput& input, const MethodOutput& output, const Sums& sums) {
  if (input.options.reduction == Reduction::kNone) return std::nullopt;
  const double total = sums.total(output.nll);
  double loss = total;
  if (input.options.reduction == Reduction::kMean) {
    if (output.valid_rows == 0) {
      return input.options.empty_mean == EmptyMean::kZero ? 0.0 : static_cast<double>(canonical_nan());
    }
    loss = Sums::quotient(total, output.valid_rows);
  }
  return canonical(input.precision == Precision::kFp64 ? loss : static_cast<double>(static_cast<float>(loss)));
}

template <class Sums>
MethodOutput run_with(const Method& method, const MethodInput& input) {
  const Batch& batch = input.batch;
  const std::vector<std::size_t> by_rank = shards_by_rank(batch);
  const std::int64_t rows = batch.rows();

  MethodOutput output;
  output.nll.assign(static_cast<std::size_t>(rows), 0.0);
  output.target_grad.assign(static_cast<std::size_t>(rows), 0.0);
  output.grad_sum.assign(static_cast<std::size_t>(rows), 0.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    if (batch.labels[row] != input.options.ignore_index) ++output.valid_rows;
  }
  // The factor of a row's loss in what is differentiated.
  const auto upstream_of = [&](std::int64_t row) {
    const double upstream = input.upstream.of_row(row);
    return input.options.reduction == Reduction::kMean ? Sums::quotient(upstream, output.valid_rows) : upstream;
  };

  Sums sums(input);
  std::vector<float> logits(static_cast<std::size_t>(batch.vocab));
  std::vector<double> gradient(logits.size());
  for (std::int64_t index = 0; index < rows; ++index) {
    const std::size_t i = static_cast<std::size_t>(index);
    const Row<Fp32> row{batch.plan, input.order, {index, rows}, logits, batch.labels[index]};
    const bool ignored = row.target == input.options.ignore_index;
    if (ignored) {
      std::fill(gradient.begin(), gradient.end(), 0.0);
    } else {
      for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
        read(batch.shards[by_rank[rank]], index, row.part(std::span<float>(logits), static_cast<std::int64_t>(rank)));
      }
      if (input.options.non_finite_row == NonFiniteRow::kError) refuse_non_finite(logits, index);
      output.nll[i] = canonical(method.evaluate(input.precision, row, upstream_of(index), gradient));
      std::transform(gradient.begin(), gradient.end(), gradient.begin(), canonical);
      output.target_grad[i] = gradient[row.target_index()];
      for (const double g : gradient) output.grad_sum[i] += g;
      output.grad_sum[i] = canonical(output.grad_sum[i]);
      sums.add_squares(row, index, gradient);
    }
    if (input.gradients.empty()) continue;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      write(input.gradients[by_rank[rank]], index,
            row.part(std::span<double>(gradient), static_cast<std::int64_t>(rank)));
    }
  }
  output.loss = reduce(input, output, sums);
  output.grad_norm = canonical(sums.norm());
  return output;
}

}  // namespace

std::span<const Method* const> methods() {
  static const LogSoftmax log_softmax;
  static const SoftplusEager softplus_eager;
  static const SoftplusRecompute softplus_recompute;
  static const CrossEntropy cross_entropy;
  static const AllGatherCrossEntropy all_gather_cross_entropy;
  static const Megatron megatron(Megatron::Form::kUnfused), megatron_fused(Megatron::Form::kFused);
  static const Online transformer_engine(Online::Form::kTransformerEngine);
  static const Online flash_attention(Online::Form::kFlashAttention);
  static const Online liger(Online::Form::kLiger);
  static const LigerVocabParallel liger_vocab_parallel;
  static const StableMax stablemax;
  static const Canonical canonical;
  static const std::array<const Method*, 13> all{
      &log_softmax,    &softplus_eager,     &softplus_recompute, &cross_entropy, &all_gather_cross_entropy, &megatron,
      &megatron_fused, &transformer_engine, &flash_attention,    &liger,         &liger_vocab_parallel,     &stablemax,
      &canonical};
  return all;
}

const Method& method_from_name(std::string_view name) {
  std::vector<Named> named;
  for (const Method* method : methods()) named.push_back({method->name(), method});
  return *find_by_name("method", name, named).method;
}

void check_precision(const Method& method, Precision precision) {
  if (method.supports(precision)) return;
  std::string names;
  for (const PrecisionInfo& info : kPrecisions) {
    if (method.supports(info.precision)) names += (names.empty() ? "" : ", ") + std::string(info.name);
  }
  throw std::invalid_argument("precision: got " + std::string(name_of(precision)) + ", expected one of " + names +
                              " for method " + std::string(method.name()));
}

void check_logits_dtype(const Batch& batch, std::string_view method) {
  for (const Shard& shard : batch.shards) {
    if (shard.logits.dtype != DType::kFloat64) continue;
    throw std::invalid_argument("logits of shard " + std::to_string(shard.index) + ": dtype is fp64, which method " +
                                std::string(method) + " does not take, expected fp32, bf16 or fp16");
  }
}

MethodOutput run(const Method& method, const MethodInput& input) {
  check(method, input);
  if (method.is_order_free()) return run_with<OrderFreeSums>(method, input);
  if (input.precision == Precision::kFp64) return run_with<OrderedSums<double>>(method, input);
  return run_with<OrderedSums<float>>(method, input);
}

}  // namespace tpce::sim
