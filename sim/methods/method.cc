#include "sim/methods/method.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "sim/methods/all_gather_cross_entropy.h"
#include "sim/methods/cross_entropy.h"
#include "sim/methods/log_softmax.h"
#include "sim/methods/softplus_eager.h"
#include "sim/methods/softplus_recompute.h"
#include "sim/order/names.h"
#include "tpce/checks.h"
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
  check_batch(input.batch, input.options, host, SelfCommunicator());
  check_gradients(input.batch, input.gradients, host);
  if (method.one_rank_only() && input.batch.plan.tp() != 1) {
    throw std::invalid_argument("tp: got " + std::to_string(input.batch.plan.tp()) + ", expected 1, since method " +
                                std::string(method.name()) +
                                " knows one rank; all_gather_cross_entropy gathers the ranks first");
  }
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

// Rounds to the gradient's type; fp32 keeps its bits, zeros of either sign among them. Padding gets 0.
void write(const Matrix& gradient, std::int64_t row, std::span<const float> from) {
  visit_dtype(gradient.dtype, [&](auto element) {
    using Element = decltype(element);
    Element* to = gradient.row<Element>(row);
    for (std::size_t j = 0; j < static_cast<std::size_t>(gradient.cols); ++j) {
      const float value = j < from.size() ? from[j] : 0.0f;
      if constexpr (std::is_same_v<Element, float>) {
        to[j] = value;
      } else {
        round_to(value, &to[j]);
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
template <class T>
T canonical(T value) {
  return std::isnan(value) ? static_cast<T>(canonical_nan()) : value;
}

// The factor of a row's loss in what is differentiated.
float row_upstream(const MethodInput& input, std::int64_t row, std::int64_t valid_rows) {
  const float upstream = static_cast<float>(input.upstream.of_row(row));
  return input.options.reduction == Reduction::kMean ? upstream / static_cast<float>(valid_rows) : upstream;
}

std::optional<float> reduce(const MethodInput& input, const MethodOutput& output) {
  if (input.options.reduction == Reduction::kNone) return std::nullopt;
  const float total = sum(input.order.rows, std::span<const float>(output.nll));
  if (input.options.reduction == Reduction::kSum) return canonical(total);
  if (output.valid_rows == 0) {
    return input.options.empty_mean == EmptyMean::kZero ? 0.0f : canonical_nan();
  }
  return canonical(total / static_cast<float>(output.valid_rows));
}

// Squares of the gradient, rank by rank and row by row.
class SquareSums {
 public:
  SquareSums(std::int64_t tp, std::int64_t rows, ReductionOrder order)
      : order_(order), by_rank_(static_cast<std::size_t>(tp), std::vector<float>(static_cast<std::size_t>(rows))) {}

  void add(const Row<Fp32>& row, std::int64_t index, std::span<float> gradient) {
    for (std::int64_t rank = 0; rank < row.tp(); ++rank) {
      std::vector<float> squares;
      for (const float g : row.part(gradient, rank)) squares.push_back(g * g);
      by_rank_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index)] =
          sum(order_.classes, std::span<const float>(squares));
    }
  }

  float norm() const {
    std::vector<float> ranks;
    for (const auto& rows : by_rank_) ranks.push_back(sum(order_.rows, std::span<const float>(rows)));
    return std::sqrt(all_reduce_sum(order_.ranks, std::span<const float>(ranks), {}));
  }

 private:
  ReductionOrder order_;
  std::vector<std::vector<float>> by_rank_;
};

}  // namespace

std::span<const Method* const> methods() {
  static const LogSoftmax log_softmax;
  static const SoftplusEager softplus_eager;
  static const SoftplusRecompute softplus_recompute;
  static const CrossEntropy cross_entropy;
  static const AllGatherCrossEntropy all_gather_cross_entropy;
  static const std::array<const Method*, 5> all{&log_softmax, &softplus_eager, &softplus_recompute, &cross_entropy,
                                                &all_gather_cross_entropy};
  return all;
}

const Method& method_from_name(std::string_view name) {
  std::vector<Named> named;
  for (const Method* method : methods()) named.push_back({method->name(), method});
  return *find_by_name("method", name, named).method;
}

MethodOutput run(const Method& method, const MethodInput& input) {
  check(method, input);
  const Batch& batch = input.batch;
  const std::vector<std::size_t> by_rank = shards_by_rank(batch);
  const std::int64_t rows = batch.rows();

  MethodOutput output;
  output.nll.assign(static_cast<std::size_t>(rows), 0.0f);
  output.target_grad.assign(static_cast<std::size_t>(rows), 0.0f);
  output.grad_sum.assign(static_cast<std::size_t>(rows), 0.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    if (batch.labels[row] != input.options.ignore_index) ++output.valid_rows;
  }

  SquareSums squares(batch.plan.tp(), rows, input.order);
  std::vector<float> logits(static_cast<std::size_t>(batch.vocab));
  std::vector<float> gradient(logits.size());
  for (std::int64_t index = 0; index < rows; ++index) {
    const std::size_t i = static_cast<std::size_t>(index);
    const Row<Fp32> row{batch.plan, input.order, {index, rows}, logits, batch.labels[index]};
    const bool ignored = row.target == input.options.ignore_index;
    if (ignored) {
      std::fill(gradient.begin(), gradient.end(), 0.0f);
    } else {
      for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
        read(batch.shards[by_rank[rank]], index, row.part(std::span<float>(logits), static_cast<std::int64_t>(rank)));
      }
      if (input.options.non_finite_row == NonFiniteRow::kError) refuse_non_finite(logits, index);
      output.nll[i] = canonical(method.evaluate(row, row_upstream(input, index, output.valid_rows), gradient));
      std::transform(gradient.begin(), gradient.end(), gradient.begin(), canonical<float>);
      output.target_grad[i] = gradient[row.target_index()];
      for (const float g : gradient) output.grad_sum[i] += static_cast<double>(g);
      output.grad_sum[i] = canonical(output.grad_sum[i]);
      squares.add(row, index, gradient);
    }
    if (input.gradients.empty()) continue;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      write(input.gradients[by_rank[rank]], index,
            row.part(std::span<float>(gradient), static_cast<std::int64_t>(rank)));
    }
  }
  output.loss = reduce(input, output);
  output.grad_norm = canonical(squares.norm());
  return output;
}

}  // namespace tpce::sim
