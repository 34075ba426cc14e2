#include "tpce/scalar_backend.h"

#include <array>
#include <new>

namespace tpce {

namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::array kLogitsDtypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr std::array kGradientDtypes{DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16};

// Position of the label among the classes of a shard, or -1 where another shard holds it.
std::int64_t local_target(const Batch& batch, const Shard& shard, std::int64_t label) {
  const std::int64_t target = label - batch.plan.first_class(shard.index);
  return target >= 0 && target < batch.classes_in(shard) ? target : -1;
}

// One row of one shard: from logits [width] to gradients [width], of which the first `classes` are not padding.
struct GradientRow {
  std::int64_t width = 0;
  std::int64_t classes = 0;
  std::int64_t target = -1;
  RowGradient gradient;
};

template <class Logit, class Gradient>
void write_gradient(const GradientRow& row, const Logit* logits, Gradient* out, BinnedSum* squares) {
  for (std::int64_t j = 0; j < row.width; ++j) {
    float dz = 0.0f;
    if (j < row.classes) {
      dz = j == row.target                                 ? row.gradient.target
           : row.gradient.kind == RowGradient::Kind::kZero ? 0.0f  // an ignored row's logits are not read
                                                           : non_target_gradient(row.gradient, widen(logits[j]));
    }
    if (squares != nullptr) add_square(*squares, dz);
    if (out != nullptr) round_to(dz, &out[j]);
  }
}

}  // namespace

Capabilities ScalarBackend::capabilities() const {
  return {.device = DeviceType::kCpu, .logits_dtypes = kLogitsDtypes, .gradient_dtypes = kGradientDtypes};
}

Buffer ScalarBackend::allocate(std::size_t bytes) const {
  return {::operator new(bytes, kAlignment), [](void* memory) { ::operator delete(memory, kAlignment); }};
}

void ScalarBackend::partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into, Queue) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t label = batch.labels[rows.first + i];
    RowPartial partial;
    if (label == options.ignore_index) {
      partial.flags = RowPartial::kIgnored;
    } else {
      for (const Shard& shard : batch.shards) {
        tpce::merge(partial, visit_narrow_dtype(shard.logits.dtype, [&](auto element) {
                      return row_partial(shard.logits.row<decltype(element)>(rows.first + i), batch.classes_in(shard),
                                         local_target(batch, shard, label));
                    }));
      }
    }
    into.store(i, partial);
  }
}

void ScalarBackend::merge(const Partials& into, const Partials& from, Queue) {
  for (std::int64_t i = 0; i < into.rows; ++i) {
    RowPartial merged = into.load(i);
    tpce::merge(merged, from.load(i));
    into.store(i, merged);
  }
}

void ScalarBackend::finalize(const Partials& partials, const Options&, const RowResults& results, Queue) {
  for (std::int64_t i = 0; i < partials.rows; ++i) {
    results.store(i, tpce::finalize(partials.load(i)));
  }
}

void ScalarBackend::reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue) {
  for (std::int64_t i = 0; i < results.rows; ++i) {
    add(sum, results.saved[i].status, results.nll[i], first_row + i);
  }
}

void ScalarBackend::gradient(const Batch& batch, const Options&, const GradientTask& task, Queue) {
  for (std::int64_t i = task.rows.first; i < task.rows.first + task.rows.count; ++i) {
    const RowGradient gradient = row_gradient(task.saved[i - task.rows.first], task.upstream.of_row(i));
    for (std::size_t s = 0; s < batch.shards.size(); ++s) {
      const Shard& shard = batch.shards[s];
      const GradientRow row{.width = shard.logits.cols,
                            .classes = batch.classes_in(shard),
                            .target = local_target(batch, shard, batch.labels[i]),
                            .gradient = gradient};
      visit_narrow_dtype(shard.logits.dtype, [&](auto logit) {
        const auto* logits = shard.logits.row<decltype(logit)>(i);
        if (task.gradients.empty()) {
          write_gradient<decltype(logit), float>(row, logits, nullptr, task.squares);
          return;
        }
        visit_dtype(task.gradients[s].dtype, [&](auto element) {
          write_gradient(row, logits, task.gradients[s].template row<decltype(element)>(i), task.squares);
        });
      });
    }
  }
}

}  // namespace tpce
