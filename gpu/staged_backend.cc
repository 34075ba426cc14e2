#include "gpu/staged_backend.h"

#include <cstdint>
#include <cstring>
#include <list>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "tpce/planes.h"

namespace tpce::gpu {

namespace {

constexpr std::align_val_t kAlignment{64};

// Copies of host memory at the inner backend's place, for the length of one call.
class Stage {
 public:
  Stage(Backend& inner, Queue queue) : inner_(inner), queue_{queue.stream, nullptr, 0} {}

  Queue queue() const { return queue_; }
  Place place() const { return {inner_.capabilities().device, 0}; }

  // Memory of its own, as far from an aligned address as `like` is: kernels then take the same way.
  void* room_for_bytes(const void* like, std::size_t bytes) {
    const std::size_t offset = reinterpret_cast<std::uintptr_t>(like) % 64;
    buffers_.push_back(inner_.allocate(bytes + 64));
    return static_cast<char*>(buffers_.back().get()) + offset;
  }
  void* copy_bytes_in(const void* from, std::size_t bytes) {
    void* to = room_for_bytes(from, bytes);
    inner_.copy_in(to, from, bytes, queue_);
    return to;
  }
  template <class T>
  T* room(T* like, std::int64_t count) {
    if (like == nullptr) return nullptr;
    return static_cast<T*>(room_for_bytes(static_cast<const void*>(like), static_cast<std::size_t>(count) * sizeof(T)));
  }
  template <class T>
  T* copy_in(T* from, std::int64_t count) {
    if (from == nullptr) return nullptr;
    using Plain = std::remove_const_t<T>;
    return static_cast<Plain*>(
        copy_bytes_in(static_cast<const void*>(from), static_cast<std::size_t>(count) * sizeof(T)));
  }
  template <class T>
  void copy_out(T* to, const T* from, std::int64_t count) {
    if (to != nullptr) inner_.copy_out(to, from, static_cast<std::size_t>(count) * sizeof(T), queue_);
  }

  void give_workspace(const Batch& batch, const Options& options, std::int64_t rows) {
    queue_.workspace_bytes = inner_.workspace_bytes(batch, options, rows);
    buffers_.push_back(inner_.allocate(queue_.workspace_bytes));
    queue_.workspace = buffers_.back().get();
  }

 private:
  Backend& inner_;
  Queue queue_;
  std::list<Buffer> buffers_;
};

// Bytes from the first element of rows to the last.
template <class Void>
std::size_t extent(const BasicMatrix<Void>& matrix) {
  if (matrix.rows == 0 || matrix.cols == 0) return 0;
  return static_cast<std::size_t>((matrix.rows - 1) * matrix.row_stride + matrix.cols) * size_of(matrix.dtype);
}

// The rows of a batch alone, which start at 0 here.
struct StagedBatch {
  std::vector<Shard> shards;
  std::vector<Matrix> memory;  // the logits of shards
  Labels labels;
  const Batch& host;

  StagedBatch(Stage& stage, const Batch& batch, RowRange rows)
      : labels(batch.labels.range(rows.first, rows.count)), host(batch) {
    for (const Shard& shard : batch.shards) {
      const ConstMatrix from = shard.logits.row_range(rows.first, rows.count);
      void* copy = stage.copy_bytes_in(from.data, extent(from));
      memory.push_back({copy, from.dtype, from.rows, from.cols, from.row_stride, stage.place()});
      shards.push_back({memory.back(), shard.index});
    }
  }
  Batch batch() const { return {host.plan, shards, labels, host.vocab}; }
};

// Partials or row results, each of whose arrays is copied in where the call reads it.
template <class Planes>
struct StagedPlanes {
  Planes there;

  StagedPlanes(Stage& stage, const Planes& host, bool is_read) {
    there.rows = host.rows;
    for_each_plane(
        [&](auto*& to, auto* from) { to = is_read ? stage.copy_in(from, host.rows) : stage.room(from, host.rows); },
        there, host);
  }
  void copy_out(Stage& stage, const Planes& host) const {
    for_each_plane([&](auto* to, const auto* from) { stage.copy_out(to, from, host.rows); }, host, there);
  }
};

constexpr bool kRead = true;
constexpr bool kWritten = false;

// A task on staged rows; its gradients lie over the staged logits where the host's do.
struct StagedTask {
  GradientTask there;
  std::vector<Matrix> gradients;

  StagedTask(Stage& stage, const StagedBatch& batch, const GradientTask& host) {
    for (std::size_t s = 0; s < host.gradients.size(); ++s) {
      const Matrix rows = host.gradients[s].row_range(host.rows.first, host.rows.count);
      const ConstMatrix logits = batch.host.shards[s].logits.row_range(host.rows.first, host.rows.count);
      const bool in_place = rows.data == logits.data && extent(rows) > 0;
      void* data = in_place ? batch.memory[s].data : stage.room_for_bytes(rows.data, extent(rows));
      gradients.push_back({data, rows.dtype, rows.rows, rows.cols, rows.row_stride, stage.place()});
    }
    there = {.rows = {0, host.rows.count},
             .saved = stage.copy_in(host.saved, host.rows.count),
             .upstream = {host.upstream.scalar, nullptr},
             .gradients = gradients,
             .squares = stage.copy_in(host.squares, 1)};
    if (host.upstream.per_row != nullptr) {
      there.upstream.per_row = stage.copy_in(host.upstream.per_row + host.rows.first, host.rows.count);
    }
  }
  void copy_out(Stage& stage, const GradientTask& host) const {
    stage.copy_out(host.squares, there.squares, 1);
    for (std::size_t s = 0; s < gradients.size(); ++s) {
      const Matrix to = host.gradients[s].row_range(host.rows.first, host.rows.count);
      std::vector<char> bytes(extent(gradients[s]));
      stage.copy_out(bytes.data(), static_cast<const char*>(gradients[s].data),
                     static_cast<std::int64_t>(bytes.size()));
      if (bytes.empty()) continue;
      const std::size_t size = size_of(to.dtype);
      const std::size_t stride = static_cast<std::size_t>(to.row_stride) * size;
      for (std::size_t i = 0; i < static_cast<std::size_t>(to.rows); ++i) {
        std::memcpy(static_cast<char*>(to.data) + i * stride, bytes.data() + i * stride,
                    static_cast<std::size_t>(to.cols) * size);
      }
    }
  }
};

}  // namespace

Capabilities StagedBackend::capabilities() const {
  Capabilities capabilities = inner_->capabilities();
  capabilities.device = DeviceType::kCpu;
  return capabilities;
}

Buffer StagedBackend::allocate(std::size_t bytes) const {
  return {::operator new(bytes, kAlignment), [](void* memory) { ::operator delete(memory, kAlignment); }};
}

void StagedBackend::partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into,
                             Queue queue) {
  Stage stage(*inner_, queue);
  const StagedBatch staged(stage, batch, rows);
  const StagedPlanes partials(stage, into, kWritten);
  stage.give_workspace(staged.batch(), options, rows.count);
  inner_->partials(staged.batch(), options, {0, rows.count}, partials.there, stage.queue());
  partials.copy_out(stage, into);
}

void StagedBackend::merge(const Partials& into, const Partials& from, Queue queue) {
  Stage stage(*inner_, queue);
  const StagedPlanes merged(stage, into, kRead);
  inner_->merge(merged.there, StagedPlanes(stage, from, kRead).there, stage.queue());
  merged.copy_out(stage, into);
}

void StagedBackend::finalize(const Partials& partials, const Options& options, const RowResults& results, Queue queue) {
  Stage stage(*inner_, queue);
  const StagedPlanes staged(stage, results, kWritten);
  inner_->finalize(StagedPlanes(stage, partials, kRead).there, options, staged.there, stage.queue());
  staged.copy_out(stage, results);
}

void StagedBackend::reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue queue) {
  Stage stage(*inner_, queue);
  const RowResults staged{.rows = results.rows,
                          .saved = stage.copy_in(results.saved, results.rows),
                          .nll = stage.copy_in(results.nll, results.rows)};
  LossSum* there = stage.copy_in(&sum, 1);
  inner_->reduce(staged, first_row, *there, stage.queue());
  stage.copy_out(&sum, there, 1);
}

void StagedBackend::gradient(const Batch& batch, const Options& options, const GradientTask& task, Queue queue) {
  Stage stage(*inner_, queue);
  const StagedBatch staged(stage, batch, task.rows);
  const StagedTask there(stage, staged, task);
  stage.give_workspace(staged.batch(), options, task.rows.count);
  inner_->gradient(staged.batch(), options, there.there, stage.queue());
  there.copy_out(stage, task);
}

void StagedBackend::forward_backward(const Batch& batch, const Options& options, const GradientTask& task,
                                     const RowResults& results, Queue queue) {
  Stage stage(*inner_, queue);
  const StagedBatch staged(stage, batch, task.rows);
  GradientTask without_saved = task;
  without_saved.saved = nullptr;
  const StagedTask there(stage, staged, without_saved);
  const StagedPlanes staged_results(stage, results, kWritten);
  stage.give_workspace(staged.batch(), options, task.rows.count);
  inner_->forward_backward(staged.batch(), options, there.there, staged_results.there, stage.queue());
  staged_results.copy_out(stage, results);
  there.copy_out(stage, task);
}

}  // namespace tpce::gpu
