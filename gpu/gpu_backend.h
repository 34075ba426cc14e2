// The gpu backend: the canonical algorithm as kernels on a Device, with the bits of ScalarBackend. On the host executor
// it is "gpu_emulated".
#pragma once

#include <memory>

#include "gpu/device.h"

namespace tpce::gpu {

class GpuBackend final : public Backend {
 public:
  explicit GpuBackend(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  std::string_view name() const override { return device_->name(); }
  // For a communicator too, which need not open the GPU, and load the kernels, a second time.
  Device& device() const { return *device_; }

  Capabilities capabilities() const override;
  Buffer allocate(std::size_t bytes) const override { return device_->allocate(bytes); }
  std::size_t workspace_bytes(const Batch& batch, const Options& options, std::int64_t rows) const override;
  void copy_in(void* to, const void* from, std::size_t bytes, Queue queue) override;
  void copy_out(void* to, const void* from, std::size_t bytes, Queue queue) override;
  // All of these throw std::invalid_argument where the queue's workspace is smaller than workspace_bytes() asks for, or
  // not aligned.
  void partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into, Queue queue) override;
  void merge(const Partials& into, const Partials& from, Queue queue) override;
  void finalize(const Partials& partials, const Options& options, const RowResults& results, Queue queue) override;
  void reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue queue) override;
  void gradient(const Batch& batch, const Options& options, const GradientTask& task, Queue queue) override;
  void forward_backward(const Batch& batch, const Options& options, const GradientTask& task, const RowResults& results,
                        Queue queue) override;

 private:
  // Blocks that share a row of `columns`, where there are too few rows to keep the device busy.
  std::int64_t segments_of(std::int64_t rows, std::int64_t columns) const;

  // forward_backward() by one kernel; false, and nothing done, where no cluster holds a row or the task asks for more.
  bool fuse(const Batch& batch, const Options& options, const GradientTask& task, const RowResults& results,
            Queue queue);

  // Takes from the queue's workspace what it uses.
  LabelView labels_of(const Batch& batch, const Options& options, RowRange rows, Queue& queue);

  template <class Arguments>
  void launch(const Arguments& arguments, std::int64_t blocks, Queue queue) {
    device_->launch(KernelOf<Arguments>::value, {blocks, Arguments::kSharedBytes}, &arguments, queue);
  }

  std::unique_ptr<Device> device_;
};

}  // namespace tpce::gpu
