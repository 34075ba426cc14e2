#include "gpu/gpu_backend.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "tpce/checks.h"

namespace tpce::gpu {

namespace {

constexpr std::array kLogitsDtypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr std::array kGradientDtypes{DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16};

// Blocks for each multiprocessor at the least, where rows are cut to make them; and what a block should have to do.
constexpr std::int64_t kBlocksPerMultiprocessor = 8;
constexpr std::int64_t kSegmentColumns = 8192;

std::int64_t quotient_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Parts of the queue's workspace, one after another.
class Workspace {
 public:
  explicit Workspace(Queue queue) : queue_(queue) { check_workspace(queue); }

  void* take(std::size_t bytes) {
    bytes = rounded(bytes);
    if (bytes > queue_.workspace_bytes - used_) {
      throw std::invalid_argument("queue: its workspace has " + std::to_string(queue_.workspace_bytes) +
                                  " bytes, expected at least " + std::to_string(used_ + bytes) +
                                  ", see workspace_bytes()");
    }
    void* first = static_cast<char*>(queue_.workspace) + used_;
    used_ += bytes;
    return first;
  }

  // The caller's queue with what is left.
  Queue rest() const {
    return {queue_.stream, static_cast<char*>(queue_.workspace) + used_, queue_.workspace_bytes - used_};
  }

  static std::size_t rounded(std::size_t bytes) {
    return (bytes + Queue::kAlignment - 1) / Queue::kAlignment * Queue::kAlignment;
  }

 private:
  Queue queue_;
  std::size_t used_ = 0;
};

// The rows of a task in one shard; labels and segments are for the caller to fill in.
template <class T>
GradientRows<T> rows_of(const Batch& batch, const Shard& shard, const GradientTask& task) {
  const std::int64_t first = task.rows.first;
  return {.logits = shard.logits.row<T>(first),
          .row_stride = shard.logits.row_stride,
          .columns = shard.logits.cols,
          .classes = batch.classes_in(shard),
          .first_class = batch.plan.first_class(shard.index),
          .labels = {},
          .saved = task.saved,
          .upstream = task.upstream.scalar,
          .upstream_of_row = task.upstream.per_row != nullptr ? task.upstream.per_row + first : nullptr,
          .segments = 1,
          .segment_columns = shard.logits.cols};
}

}  // namespace

Capabilities GpuBackend::capabilities() const {
  return {.device = device_->type(), .logits_dtypes = kLogitsDtypes, .gradient_dtypes = kGradientDtypes};
}

std::int64_t GpuBackend::segments_of(std::int64_t rows, std::int64_t columns) const {
  const std::int64_t blocks = kBlocksPerMultiprocessor * device_->properties().multiprocessors;
  const std::int64_t wanted = quotient_up(blocks, std::max<std::int64_t>(rows, 1));
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(quotient_up(columns, kSegmentColumns), 1));
}

// Labels, where they are not on the device; the partials of forward_backward(); and what is larger, the partials of
// segments or their sums of squares.
std::size_t GpuBackend::workspace_bytes(const Batch&, const Options& options, std::int64_t rows) const {
  const auto partials_of = [&](std::int64_t count) {
    return Workspace::rounded(static_cast<std::size_t>(count) * Partials::bytes_per_row(options));
  };
  // rows * segments_of(rows, columns) is no more, for fewer rows too.
  const std::int64_t segments = kBlocksPerMultiprocessor * device_->properties().multiprocessors + rows;
  return Workspace::rounded(static_cast<std::size_t>(rows) * sizeof(std::int64_t)) + partials_of(rows) +
         std::max(partials_of(segments), Workspace::rounded(static_cast<std::size_t>(segments) * sizeof(BinnedSum)));
}

void GpuBackend::copy_in(void* to, const void* from, std::size_t bytes, Queue queue) {
  device_->copy_to_device(to, from, bytes, queue);
}

void GpuBackend::copy_out(void* to, const void* from, std::size_t bytes, Queue queue) {
  device_->copy_to_host(to, from, bytes, queue);
}

// Labels of the rows as kernels read them; those in host memory are copied, which may wait for the queue.
LabelView GpuBackend::labels_of(const Batch& batch, const Options& options, RowRange rows, Queue& queue) {
  const Labels labels = batch.labels.range(rows.first, rows.count);
  LabelView view{labels.data(), labels.is_wide(), options.ignore_index, batch.vocab};
  if (labels.place().type != device_->type()) {
    Workspace workspace(queue);
    const std::size_t bytes =
        static_cast<std::size_t>(rows.count) * (labels.is_wide() ? sizeof(std::int64_t) : sizeof(std::int32_t));
    void* copy = workspace.take(bytes);
    device_->copy_to_device(copy, labels.data(), bytes, queue);
    view.data = copy;
    queue = workspace.rest();
  }
  return view;
}

void GpuBackend::partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into,
                          Queue queue) {
  const LabelView labels = labels_of(batch, options, rows, queue);
  if (batch.shards.empty()) {  // no class is here; what the labels say still is
    RowPartialsArguments<float> nothing{};
    nothing.labels = labels;
    nothing.rows = rows.count;
    nothing.segments = 1;
    nothing.into = into;
    launch(nothing, rows.count, queue);
    return;
  }
  bool keeps = false;
  for (const Shard& shard : batch.shards) {
    const std::int64_t classes = batch.classes_in(shard);
    const std::int64_t segments = segments_of(rows.count, classes);
    // A shard that is walked in one piece needs no merge where it is the only one.
    const bool alone = batch.shards.size() == 1 && segments == 1;
    const std::int64_t count = rows.count * segments;
    const Partials parts =
        alone ? into
              : Partials::in(Workspace(queue).take(static_cast<std::size_t>(count) * Partials::bytes_per_row(options)),
                             count, options);
    visit_narrow_dtype(shard.logits.dtype, [&](auto element) {
      using T = decltype(element);
      launch(RowPartialsArguments<T>{.logits = shard.logits.row<T>(rows.first),
                                     .row_stride = shard.logits.row_stride,
                                     .classes = classes,
                                     .first_class = batch.plan.first_class(shard.index),
                                     .labels = labels,
                                     .rows = rows.count,
                                     .segments = segments,
                                     .segment_columns = quotient_up(classes, segments),
                                     .into = parts},
             count, queue);
    });
    if (!alone) {
      launch(MergeArguments{{}, into, parts, segments, rows.count, keeps}, quotient_up(rows.count, RowGrid::kThreads),
             queue);
    }
    keeps = true;
  }
}

void GpuBackend::merge(const Partials& into, const Partials& from, Queue queue) {
  launch(MergeArguments{{}, into, from, 1, into.rows, true}, quotient_up(into.rows, RowGrid::kThreads), queue);
}

void GpuBackend::finalize(const Partials& partials, const Options&, const RowResults& results, Queue queue) {
  launch(FinalizeArguments{{}, partials, results}, quotient_up(results.rows, RowGrid::kThreads), queue);
}

void GpuBackend::reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue queue) {
  launch(ReduceLossesArguments{{}, results, first_row, &sum}, 1, queue);
}

void GpuBackend::gradient(const Batch& batch, const Options& options, const GradientTask& task, Queue queue) {
  const RowRange rows = task.rows;
  const LabelView labels = labels_of(batch, options, rows, queue);
  for (std::size_t s = 0; s < batch.shards.size(); ++s) {
    const Shard& shard = batch.shards[s];
    const std::int64_t segments = segments_of(rows.count, shard.logits.cols);
    const std::int64_t blocks = rows.count * segments;
    visit_narrow_dtype(shard.logits.dtype, [&](auto logit) {
      using T = decltype(logit);
      GradientRows<T> gradient_rows = rows_of<T>(batch, shard, task);
      gradient_rows.labels = labels;
      gradient_rows.segments = segments;
      gradient_rows.segment_columns = quotient_up(shard.logits.cols, segments);
      if (task.squares != nullptr) {  // before a gradient may overwrite the logits
        auto* parts =
            static_cast<BinnedSum*>(Workspace(queue).take(static_cast<std::size_t>(blocks) * sizeof(BinnedSum)));
        launch(SquaresArguments<T>{gradient_rows, parts}, blocks, queue);
        launch(ReduceSquaresArguments{{}, parts, blocks, task.squares}, 1, queue);
      }
      if (task.gradients.empty()) return;
      const Matrix& gradients = task.gradients[s];
      visit_dtype(gradients.dtype, [&](auto element) {
        using Out = decltype(element);
        launch(GradientArguments<T, Out>{gradient_rows, gradients.row<Out>(rows.first), gradients.row_stride}, blocks,
               queue);
      });
    });
  }
}

bool GpuBackend::fuse(const Batch& batch, const Options& options, const GradientTask& task, const RowResults& results,
                      Queue queue) {
  if (batch.shards.size() != 1 || task.gradients.size() != 1 || task.squares != nullptr) return false;
  const Shard& shard = batch.shards.front();
  const Matrix& gradients = task.gradients.front();
  if (gradients.dtype != shard.logits.dtype) return false;
  return visit_narrow_dtype(shard.logits.dtype, [&](auto element) {
    using T = decltype(element);
    using Arguments = FusedArguments<T>;
    constexpr Kernel kKernel = KernelOf<Arguments>::value;
    // The smallest cluster that holds a row and, where rows are few, has a block for each multiprocessor: a
    // multiprocessor holds one of these.
    const std::int64_t rows = std::max<std::int64_t>(task.rows.count, 1);
    const std::int64_t wanted = std::min(quotient_up(device_->properties().multiprocessors, rows),
                                         quotient_up(shard.logits.cols, kSegmentColumns));
    for (int cluster = 1; cluster <= device_->properties().blocks_per_cluster; cluster *= 2) {
      const std::int64_t columns = Arguments::segment_columns(shard.logits.cols, cluster);
      const Launch launch{task.rows.count * cluster,
                          Arguments::shared_bytes(std::min(columns, batch.classes_in(shard))), cluster};
      if (cluster < wanted || !device_->has_room(kKernel, launch)) continue;
      Arguments arguments{rows_of<T>(batch, shard, task), results, gradients.row<T>(task.rows.first),
                          gradients.row_stride};
      arguments.rows.labels = labels_of(batch, options, task.rows, queue);
      arguments.rows.segments = cluster;
      arguments.rows.segment_columns = columns;
      device_->launch(kKernel, launch, &arguments, queue);
      return true;
    }
    return false;
  });
}

void GpuBackend::forward_backward(const Batch& batch, const Options& options, const GradientTask& task,
                                  const RowResults& results, Queue queue) {
  if (fuse(batch, options, task, results, queue)) return;
  Workspace workspace(queue);
  const std::int64_t count = task.rows.count;
  const Partials merged =
      Partials::in(workspace.take(static_cast<std::size_t>(count) * Partials::bytes_per_row(options)), count, options);
  partials(batch, options, task.rows, merged, workspace.rest());
  finalize(merged, options, results, queue);
  GradientTask with_saved = task;
  with_saved.saved = results.saved;
  gradient(batch, options, with_saved, workspace.rest());
}

}  // namespace tpce::gpu
