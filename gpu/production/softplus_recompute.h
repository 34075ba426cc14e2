// softplus_recompute: softplus of the negative margin, which keeps the logits as they came and four numbers a row. The
// formulas are those of sim/methods/softplus_recompute.h: M = MAX of z, the target's among them; N = SUM of
// exp(z_j - M) without the target; d = SUM of the target's z_t - M; e = exp(d), S = N + e; nll = softplus(log N - d);
// dz_j = (exp(z_j - M) / S) g, with p - 1 for the target where p = e / S < 1/4, else -(N / S).
#pragma once

#include "gpu/production/shared_steps.h"

namespace tpce::gpu {

template <class T>
struct SoftplusSumsArguments : ProductionGrid {
  ProductionRows<T> rows;
  const float* maximum;   // [rows], of all ranks
  float* non_target_sum;  // [rows], of this rank
  float* shifted_target;  // [rows]; 0 where another rank has the target
};

template <class T, class Block>
TPCE_DEVICE void softplus_sums(Block& block, const SoftplusSumsArguments<T>& arguments) {
  constexpr int kElements = PlaceSums<T>::kElements;
  const std::int64_t row = block.index();
  const ProductionRows<T>& rows = arguments.rows;
  const RowVectors<T> logits(rows.row(row), rows.is_ignored(row) ? 0 : rows.classes);
  const float maximum = arguments.maximum[row];
  const std::int64_t target = rows.target_of(row);
  const auto slots = block.template shared<float>(ProductionGrid::kThreads);
  auto states = block.template registers<PlaceSums<T>>();
  block.phase(states, [&](int thread, PlaceSums<T>& sums) {
    logits.walk(
        thread,
        [&](const Words4& words, std::int64_t j) {
          const int place = place_in_vector<kElements>(target, j);
          TPCE_UNROLLED for (int i = 0; i < kElements; ++i) {
            const float term = hardware_exp(subtract_rn(Packed<T>::at(words, i), maximum));
            sums.at[i] = add_rn(sums.at[i], i == place ? 0.0f : term);
          }
        },
        [&](float x, std::int64_t j) {
          if (j != target) sums.at[0] = add_rn(sums.at[0], hardware_exp(subtract_rn(x, maximum)));
        });
    slots.write(thread, sums.total());
  });
  sum_over_threads(block, slots, [&](float sum) {
    arguments.non_target_sum[row] = sum;
    arguments.shifted_target[row] = owned_by_target(rows, row, [&](float z) { return subtract_rn(z, maximum); });
  });
}

// What backward needs of a row beside its logits.
struct SoftplusStatistics {
  const float* maximum;   // [rows], M
  float* sum_exp;         // S
  float* non_target_sum;  // N
  float* target_exp;      // e
};

struct SoftplusLossArguments : RowGrid {
  SoftplusStatistics statistics;  // M and N are there, of all ranks; S and e are written
  const float* shifted_target;    // [rows], of all ranks
  LabelView labels;
  std::int64_t rows;
  float* nll;  // [rows]
};

// With the threshold that torch.nn.functional.softplus has unless told otherwise.
TPCE_DEVICE_INLINE float softplus(float x) { return x > 20.0f ? x : log1pf(hardware_exp(x)); }

template <class Block>
TPCE_DEVICE void softplus_loss(Block& block, const SoftplusLossArguments& arguments) {
  for_row(block, arguments.rows, [&](std::int64_t row) {
    const SoftplusStatistics& of = arguments.statistics;
    const float shifted_target = arguments.shifted_target[row];
    const float non_target_sum = of.non_target_sum[row];
    of.target_exp[row] = hardware_exp(shifted_target);
    of.sum_exp[row] = add_rn(non_target_sum, of.target_exp[row]);
    const bool is_ignored = arguments.labels.at(row) == arguments.labels.ignore_index;
    arguments.nll[row] = is_ignored ? 0.0f : softplus(subtract_rn(logf(non_target_sum), shifted_target));
  });
}

template <class T, class Out>
struct SoftplusGradientArguments : ProductionGrid {
  ProductionRows<T> rows;
  SoftplusStatistics statistics;
  UpstreamView upstream;
  Out* gradients;  // of the first row; may be the logits
  std::int64_t gradient_stride;
};

template <class T, class Out, class Block>
TPCE_DEVICE void softplus_gradient(Block& block, const SoftplusGradientArguments<T, Out>& arguments) {
  const std::int64_t row = block.index();
  const ProductionRows<T>& rows = arguments.rows;
  const float scale = scale_of(rows, arguments.upstream, row);
  const float maximum = arguments.statistics.maximum[row];
  const float sum_exp = arguments.statistics.sum_exp[row];
  const float target_prob = hardware_quotient(arguments.statistics.target_exp[row], sum_exp);
  const float target_gradient = target_prob < 0.25f
                                    ? subtract_rn(target_prob, 1.0f)
                                    : -hardware_quotient(arguments.statistics.non_target_sum[row], sum_exp);
  const WrittenRow<Out> to{arguments.gradients + row * arguments.gradient_stride, rows.columns, rows.target_of(row)};
  const std::int64_t classes = rows.is_ignored(row) ? 0 : rows.classes;
  auto none = block.template registers<NoState>();
  block.phase(none, [&](int thread, NoState&) {
    write_row(RowVectors<T>(rows.row(row), classes), to, thread, [&](float z, bool is_target) {
      const float prob = hardware_quotient(hardware_exp(subtract_rn(z, maximum)), sum_exp);
      return multiply_rn(is_target ? target_gradient : prob, scale);
    });
  });
}

}  // namespace tpce::gpu
