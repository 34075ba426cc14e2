#include "tpce/backend.h"

#include <cstring>

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

std::size_t Backend::workspace_bytes(const Batch&, const Options&, std::int64_t) const { return 0; }

void Backend::copy_in(void* to, const void* from, std::size_t bytes, Queue) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void Backend::copy_out(void* to, const void* from, std::size_t bytes, Queue) {
  if (bytes > 0) std::memcpy(to, from, bytes);
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

}  // namespace tpce
