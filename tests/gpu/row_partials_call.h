// One call of the kernel row_partials on memory of a device.
#pragma once

#include "gpu/device.h"
#include "tpce/row_partial.h"

namespace tpce::gpu::testing {

// Rows of `columns` logits and as many classes, from `logits` on, in as many segments as `into` has room for.
template <class T>
RowPartialsArguments<T> row_partials_arguments(const T* logits, std::int64_t columns, const LabelView& labels,
                                               std::int64_t rows, const Partials& into) {
  const std::int64_t segments = into.rows / rows;
  RowPartialsArguments<T> arguments{};
  arguments.logits = logits;
  arguments.row_stride = columns;
  arguments.classes = columns;
  arguments.labels = labels;
  arguments.rows = rows;
  arguments.segments = segments;
  arguments.segment_columns = (columns + segments - 1) / segments;
  arguments.into = into;
  return arguments;
}

template <class T>
void launch(Device& device, const RowPartialsArguments<T>& arguments) {
  device.launch(KernelOf<RowPartialsArguments<T>>::value, {arguments.into.rows, arguments.kSharedBytes}, &arguments,
                {});
}

// Row i over its segments; found is `into` in host memory.
inline RowPartial merged_segments(const Partials& found, std::int64_t rows, std::int64_t i) {
  RowPartial merged = found.load(i);
  for (std::int64_t at = rows + i; at < found.rows; at += rows) merge(merged, found.load(at));
  return merged;
}

}  // namespace tpce::gpu::testing
