#include "tpce/backend.h"

#include <algorithm>

namespace tpce {

std::size_t Partials::bytes_per_row(const Options&) {
  return 3 * sizeof(std::int64_t) + 2 * sizeof(float) + sizeof(std::uint32_t);
}

Partials Partials::in(void* memory, std::int64_t rows, const Options&) {
  Partials partials;
  partials.rows = rows;
  partials.d0 = static_cast<std::int64_t*>(memory);
  partials.d1 = partials.d0 + rows;
  partials.d2 = partials.d1 + rows;
  void* after_digits = partials.d2 + rows;
  partials.max_logit = static_cast<float*>(after_digits);
  partials.target_logit = partials.max_logit + rows;
  void* after_logits = partials.target_logit + rows;
  partials.flags = static_cast<std::uint32_t*>(after_logits);
  return partials;
}

void RowResults::store(std::int64_t i, const FinalRow& row) const {
  const bool is_number = row.saved.status == RowStatus::kValid || row.saved.status == RowStatus::kIgnored;
  saved[i] = row.saved;
  nll[i] = is_number ? static_cast<float>(row.nll) : canonical_nan();
  if (lse != nullptr) lse[i] = is_number ? static_cast<float>(row.lse) : canonical_nan();
  if (nll_fp64 != nullptr) nll_fp64[i] = row.nll;
  if (lse_fp64 != nullptr) lse_fp64[i] = row.lse;
}

void Backend::forward_backward(const Batch& batch, const Options& options, const GradientTask& task,
                               const RowResults& results, Queue queue) {
  const Buffer memory = allocate(static_cast<std::size_t>(task.rows.count) * Partials::bytes_per_row(options));
  const Partials merged = Partials::in(memory.get(), task.rows.count, options);
  partials(batch, options, task.rows, merged, queue);
  finalize(merged, options, results, queue);
  GradientTask with_saved = task;
  with_saved.saved = results.saved;
  gradient(batch, options, with_saved, queue);
}

void merge(LossSum& into, const LossSum& from, std::int64_t first_row) {
  const auto first_of = [&](std::int64_t a, std::int64_t b) {
    return b == LossSum::kNoRow ? a : std::min(a, first_row + b);
  };
  merge(into.nll, from.nll);
  into.valid_rows += from.valid_rows;
  into.first_not_finite = first_of(into.first_not_finite, from.first_not_finite);
  into.first_target_missing = first_of(into.first_target_missing, from.first_target_missing);
  into.first_target_twice = first_of(into.first_target_twice, from.first_target_twice);
}

}  // namespace tpce
