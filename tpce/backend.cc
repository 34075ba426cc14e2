#include "tpce/backend.h"

#include <cstring>

#include "tpce/planes.h"

namespace tpce {

std::size_t Partials::bytes_per_row(const Options&) {
  std::size_t bytes = 0;
  const Partials none;
  for_each_plane([&](const auto* plane) { bytes += sizeof *plane; }, none);
  return bytes;
}

Partials Partials::in(void* memory, std::int64_t rows, const Options&) {
  Partials partials;
  partials.rows = rows;
  for_each_plane(
      [&]<class T>(T*& plane) {
        plane = static_cast<T*>(memory);
        memory = plane + rows;
      },
      partials);
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
