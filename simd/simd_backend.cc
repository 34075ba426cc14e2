#include "simd/simd_backend.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tpce/float_mode.h"
#include "tpce/row_partial.h"

namespace tpce::simd {

namespace {

// Fewer tasks than this for each thread leave threads idle at the end.
constexpr std::int64_t kTasksPerThread = 4;
// Columns of a task at the least, where rows are cut: below, starting a task costs more than it saves.
constexpr std::int64_t kMinTaskColumns = 8192;

// Elements of a task at the least, where there are rows enough: setting and restoring the floating-point mode waits for
// every operation under way, which short rows would feel.
constexpr std::int64_t kMinTaskElements = 65536;

// Rows of a task of forward and backward, of which all but the last are written while the next is read.
constexpr std::int64_t kPipelinedRows = 16;

// 960 KiB a thread: what forward keeps of a row for its backward, as far as it goes.
constexpr std::size_t kCachedExponentials = 240 * 1024;

Kernels kernels_of(const std::string& target) {
  constexpr const char* kForced = "TPCE_TARGET";
  const char* forced = std::getenv(kForced);
  return target.empty() && forced != nullptr ? kernels_for(forced, kForced) : kernels_for(target);
}

template <class Matrix>
Matrix part_of(const Matrix& matrix, const Piece& piece, std::int64_t row) {
  return matrix.row_range(row, 1).column_range(piece.first, piece.count);
}

RowLogits stretch_of(const Batch& batch, const Piece& piece, std::int64_t row) {
  const Shard& shard = batch.shards[piece.shard];
  const std::int64_t first_class = batch.plan.first_class(shard.index) + piece.first;
  const std::int64_t classes = std::clamp<std::int64_t>(batch.vocab - first_class, 0, piece.count);
  const std::int64_t target = batch.labels[row] - first_class;
  return {.logits = part_of(shard.logits, piece, row).data,
          .classes = classes,
          .width = piece.count,
          .target = target >= 0 && target < classes ? target : -1};
}

}  // namespace

SimdBackend::SimdBackend(const SimdOptions& options) : SimdBackend(options, make_tbb_executor(options.threads)) {}

SimdBackend::SimdBackend(const SimdOptions& options, std::unique_ptr<Executor> executor)
    : kernels_(kernels_of(options.target)), executor_(std::move(executor)), block_skipping_(options.block_skipping) {}

Capabilities SimdBackend::capabilities() const { return scalar_.capabilities(); }

std::vector<SimdBackend::Pieces> SimdBackend::tasks_of_row(const Batch& batch, std::int64_t rows) const {
  const std::int64_t wanted_tasks = kTasksPerThread * executor_->threads();
  const bool whole_rows = executor_->threads() == 1 || rows >= wanted_tasks;
  std::int64_t columns = 0;
  for (const Shard& shard : batch.shards) columns += shard.logits.cols;
  const std::int64_t per_row = whole_rows ? 1 : (wanted_tasks + rows - 1) / std::max<std::int64_t>(rows, 1);
  const std::int64_t size = std::max(whole_rows ? 1 : kMinTaskColumns, (columns + per_row - 1) / per_row);
  Pieces pieces;
  for (std::size_t s = 0; s < batch.shards.size(); ++s) {
    const std::int64_t cols = batch.shards[s].logits.cols;
    for (std::int64_t first = 0; first < cols; first += size) {
      pieces.push_back({s, first, std::min(size, cols - first)});
    }
  }
  if (whole_rows) return {pieces};
  std::vector<Pieces> tasks;
  for (const Piece& piece : pieces) tasks.push_back({piece});
  return tasks;
}

RowPartial SimdBackend::partial_of(const Batch& batch, const Options& options, const RowTask& row) const {
  if (row.cache != nullptr) row.cache->clear();
  if (batch.labels[row.row] == options.ignore_index) return RowPartial::only_flags(RowPartial::kIgnored);
  thread_local std::vector<RowLogits> stretches;
  stretches.clear();
  for (const Piece& piece : row.pieces) {
    stretches.push_back(stretch_of(batch, piece, row.row));
    if (row.gradients.empty()) continue;
    const Matrix gradients = part_of(row.gradients[piece.shard], piece, row.row);
    if (gradients.dtype == batch.shards[piece.shard].logits.dtype) stretches.back().gradients = gradients.data;
  }
  if (stretches.empty()) return {};
  // Shards of one type are walked as one row; each other type makes a walk of its own.
  const auto dtype_of = [&](std::size_t i) { return batch.shards[row.pieces[i].shard].logits.dtype; };
  RowPartial partial;
  for (std::size_t first = 0, last = 0; first < stretches.size(); first = last) {
    while (last < stretches.size() && dtype_of(last) == dtype_of(first)) ++last;
    const std::span<const RowLogits> walk(stretches.data() + first, last - first);
    const RowPartial walked = kernels_.partial_of(dtype_of(first))(walk, block_skipping_, row.cache);
    if (walk.size() == stretches.size()) return walked;
    tpce::merge(partial, walked);
  }
  return partial;
}

BinnedSum SimdBackend::write_gradient(const Batch& batch, const GradientTask& task, const RowGradient& gradient,
                                      const RowTask& row) const {
  BinnedSum squares;
  for (std::size_t i = 0; i < row.pieces.size(); ++i) {
    const Piece& piece = row.pieces[i];
    DType dtype = DType::kFloat32;
    void* out = nullptr;
    if (!task.gradients.empty()) {
      const Matrix gradients = part_of(task.gradients[piece.shard], piece, row.row);
      dtype = gradients.dtype;
      out = gradients.data;
    }
    const GradientKernel kernel = kernels_.gradient_of(batch.shards[piece.shard].logits.dtype, dtype);
    kernel(stretch_of(batch, piece, row.row), gradient, out, task.squares != nullptr ? &squares : nullptr,
           row.cache != nullptr ? KeptStretch{row.cache->stretch(i), row.cache} : KeptStretch{});
  }
  return squares;
}

std::int64_t SimdBackend::rows_per_task(const Batch& batch, std::int64_t rows, std::int64_t wanted) const {
  std::int64_t columns = 1;
  for (const Shard& shard : batch.shards) columns += shard.logits.cols;
  const std::int64_t fair = rows / (kTasksPerThread * executor_->threads());
  return std::clamp<std::int64_t>(fair, 1, wanted + kMinTaskElements / columns);
}

void SimdBackend::for_rows(std::int64_t rows, std::int64_t rows_per_task, BinnedSum* squares,
                           const RowsBody& body) const {
  std::mutex squares_mutex;
  executor_->for_each((rows + rows_per_task - 1) / rows_per_task, [&](std::int64_t t) {
    const DefaultFloatMode mode;
    BinnedSum task_squares;
    const std::int64_t first = t * rows_per_task;
    body({first, std::min(rows_per_task, rows - first)}, task_squares);
    if (squares == nullptr) return;
    const std::lock_guard lock(squares_mutex);
    tpce::merge(*squares, task_squares);
  });
}

void SimdBackend::partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into, Queue) {
  const std::vector<Pieces> tasks = tasks_of_row(batch, rows.count);
  const auto per_row = static_cast<std::int64_t>(tasks.size());
  if (per_row == 1) {
    for_rows(rows.count, rows_per_task(batch, rows.count, 1), nullptr, [&](RowRange part, BinnedSum&) {
      for (std::int64_t i = part.first; i < part.first + part.count; ++i) {
        into.store(i, partial_of(batch, options, {rows.first + i, tasks.front()}));
      }
    });
    return;
  }
  std::vector<RowPartial> partials(static_cast<std::size_t>(rows.count * per_row));
  executor_->for_each(rows.count * per_row, [&](std::int64_t t) {
    const DefaultFloatMode mode;
    partials[static_cast<std::size_t>(t)] =
        partial_of(batch, options, {rows.first + t / per_row, tasks[static_cast<std::size_t>(t % per_row)]});
  });
  for (std::int64_t i = 0; i < rows.count; ++i) {
    RowPartial partial;
    for (std::int64_t t = 0; t < per_row; ++t) {
      tpce::merge(partial, partials[static_cast<std::size_t>(i * per_row + t)]);
    }
    into.store(i, partial);
  }
}

void SimdBackend::merge(const Partials& into, const Partials& from, Queue queue) { scalar_.merge(into, from, queue); }

void SimdBackend::finalize(const Partials& partials, const Options&, const RowResults& results, Queue) {
  for (std::int64_t i = 0; i < partials.rows; ++i) results.store(i, kernels_.finalize(partials.load(i)));
}

void SimdBackend::reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue queue) {
  scalar_.reduce(results, first_row, sum, queue);
}

void SimdBackend::gradient(const Batch& batch, const Options&, const GradientTask& task, Queue) {
  const std::vector<Pieces> tasks = tasks_of_row(batch, task.rows.count);
  const auto per_row = static_cast<std::int64_t>(tasks.size());
  const auto gradient_of = [&](std::int64_t i) {
    return kernels_.row_gradient(task.saved[i], task.upstream.of_row(task.rows.first + i));
  };
  if (per_row == 1) {
    const std::int64_t at_once = rows_per_task(batch, task.rows.count, 1);
    for_rows(task.rows.count, at_once, task.squares, [&](RowRange part, BinnedSum& squares) {
      for (std::int64_t i = part.first; i < part.first + part.count; ++i) {
        tpce::merge(squares, write_gradient(batch, task, gradient_of(i), {task.rows.first + i, tasks.front()}));
      }
    });
    return;
  }
  std::mutex squares_mutex;
  executor_->for_each(task.rows.count * per_row, [&](std::int64_t t) {
    const DefaultFloatMode mode;
    const std::int64_t i = t / per_row;
    const BinnedSum squares = write_gradient(batch, task, gradient_of(i),
                                             {task.rows.first + i, tasks[static_cast<std::size_t>(t % per_row)]});
    if (task.squares == nullptr) return;
    const std::lock_guard lock(squares_mutex);
    tpce::merge(*task.squares, squares);
  });
}

void SimdBackend::forward_backward(const Batch& batch, const Options& options, const GradientTask& task,
                                   const RowResults& results, Queue queue) {
  const std::vector<Pieces> tasks = tasks_of_row(batch, task.rows.count);
  if (tasks.size() != 1) {
    Backend::forward_backward(batch, options, task, results, queue);
    return;
  }
  const std::int64_t at_once = executor_->threads() == 1 ? std::max<std::int64_t>(task.rows.count, 1)
                                                         : rows_per_task(batch, task.rows.count, kPipelinedRows);
  for_rows(task.rows.count, at_once, task.squares, [&](RowRange part, BinnedSum& squares) {
    thread_local ExpCache cache(kCachedExponentials);
    cache.drop_deferred();  // of a task that an exception ended
    for (std::int64_t i = part.first; i < part.first + part.count; ++i) {
      const RowTask row{task.rows.first + i, tasks.front(), &cache, task.gradients};
      const RowPartial partial = partial_of(batch, options, row);
      cache.write_deferred();
      const FinalRow final_row = kernels_.finalize(partial);
      results.store(i, final_row);
      const RowGradient gradient = kernels_.row_gradient(final_row.saved, task.upstream.of_row(row.row));
      tpce::merge(squares, write_gradient(batch, task, gradient, row));
    }
    cache.write_deferred();
  });
}

}  // namespace tpce::simd
