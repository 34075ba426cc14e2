// log_softmax: log-probabilities by three all-reduces, kept in fp32 until backward. The formulas are those of
// sim/methods/log_softmax.h: M = MAX of z, S = SUM of exp(z_j - M), logp_j = (z_j - M) - log S,
// nll = -(SUM of the target's logp), dz_j = (exp(logp_j) - [j = t]) g.
#pragma once

#include "gpu/production/shared_steps.h"

namespace tpce::gpu {

template <class T>
struct LogSoftmaxSumArguments : ProductionGrid {
  ProductionRows<T> rows;
  const float* maximum;  // [rows], of all ranks
  float* sum;            // [rows], of this rank
};

template <class T, class Block>
TPCE_DEVICE void log_softmax_sum(Block& block, const LogSoftmaxSumArguments<T>& arguments) {
  const std::int64_t row = block.index();
  const bool is_ignored = arguments.rows.is_ignored(row);
  const RowVectors<T> logits(arguments.rows.row(row), is_ignored ? 0 : arguments.rows.classes);
  const float maximum = arguments.maximum[row];
  const auto slots = block.template shared<float>(ProductionGrid::kThreads);
  auto states = block.template registers<PlaceSums<T>>();
  block.phase(states, [&](int thread, PlaceSums<T>& sums) {
    logits.walk(
        thread,
        [&](const Words4& words, std::int64_t) {
          TPCE_UNROLLED for (int i = 0; i < PlaceSums<T>::kElements; ++i) {
            sums.at[i] = add_rn(sums.at[i], hardware_exp(subtract_rn(Packed<T>::at(words, i), maximum)));
          }
        },
        [&](float x, std::int64_t) { sums.at[0] = add_rn(sums.at[0], hardware_exp(subtract_rn(x, maximum))); });
    slots.write(thread, sums.total());
  });
  sum_over_threads(block, slots, [&](float sum) { arguments.sum[row] = sum; });
}

template <class T>
struct LogProbabilitiesArguments : ProductionGrid {
  ProductionRows<T> rows;
  const float* maximum;  // [rows], of all ranks
  const float* sum;      // [rows], of all ranks
  float* log_probabilities;
  std::int64_t stride;     // of their rows, in elements
  float* target_log_prob;  // [rows]; 0 where another rank has the target
};

template <class T, class Block>
TPCE_DEVICE void log_probabilities(Block& block, const LogProbabilitiesArguments<T>& arguments) {
  const std::int64_t row = block.index();
  const ProductionRows<T>& rows = arguments.rows;
  const float maximum = arguments.maximum[row];
  const float log_sum = logf(arguments.sum[row]);
  const auto log_prob = [&](float z) { return subtract_rn(subtract_rn(z, maximum), log_sum); };
  const bool is_ignored = rows.is_ignored(row);
  auto none = block.template registers<NoState>();
  block.phase(none, [&](int thread, NoState&) {
    if (thread == 0) arguments.target_log_prob[row] = owned_by_target(rows, row, log_prob);
    if (is_ignored) return;
    const WrittenRow<float> to{arguments.log_probabilities + row * arguments.stride, rows.classes, -1};
    write_row(RowVectors<T>(rows.row(row), rows.classes), to, thread, [&](float z, bool) { return log_prob(z); });
  });
}

struct LogSoftmaxLossArguments : RowGrid {
  const float* target_log_prob;  // [rows], of all ranks
  LabelView labels;
  std::int64_t rows;
  float* nll;  // [rows]
};

template <class Block>
TPCE_DEVICE void log_softmax_loss(Block& block, const LogSoftmaxLossArguments& arguments) {
  for_row(block, arguments.rows, [&](std::int64_t row) {
    const bool is_ignored = arguments.labels.at(row) == arguments.labels.ignore_index;
    arguments.nll[row] = is_ignored ? 0.0f : -arguments.target_log_prob[row];
  });
}

template <class Out>
struct LogSoftmaxGradientArguments : ProductionGrid {
  ProductionRows<float> rows;  // of log-probabilities in place of logits
  UpstreamView upstream;
  Out* gradients;  // of the first row; may be the log-probabilities
  std::int64_t gradient_stride;
};

template <class Out, class Block>
TPCE_DEVICE void log_softmax_gradient(Block& block, const LogSoftmaxGradientArguments<Out>& arguments) {
  const std::int64_t row = block.index();
  const ProductionRows<float>& rows = arguments.rows;
  const float scale = scale_of(rows, arguments.upstream, row);
  const WrittenRow<Out> to{arguments.gradients + row * arguments.gradient_stride, rows.columns, rows.target_of(row)};
  const std::int64_t classes = rows.is_ignored(row) ? 0 : rows.classes;
  auto none = block.template registers<NoState>();
  block.phase(none, [&](int thread, NoState&) {
    write_row(RowVectors<float>(rows.row(row), classes), to, thread, [&](float logp, bool is_target) {
      return multiply_rn(add_rn(is_target ? -1.0f : 0.0f, hardware_exp(logp)), scale);
    });
  });
}

}  // namespace tpce::gpu
