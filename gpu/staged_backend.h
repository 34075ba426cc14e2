// A backend for host memory that computes with one whose memory is elsewhere: every call copies in what it needs, and
// its results back. For programs and tests whose logits are on the host; a training step keeps its logits on the
// device.
#pragma once

#include <memory>

#include "tpce/backend.h"

namespace tpce::gpu {

class StagedBackend final : public Backend {
 public:
  explicit StagedBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  Backend& inner() { return *inner_; }

  Capabilities capabilities() const override;
  Buffer allocate(std::size_t bytes) const override;
  void partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into, Queue queue) override;
  void merge(const Partials& into, const Partials& from, Queue queue) override;
  void finalize(const Partials& partials, const Options& options, const RowResults& results, Queue queue) override;
  void reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue queue) override;
  void gradient(const Batch& batch, const Options& options, const GradientTask& task, Queue queue) override;
  void forward_backward(const Batch& batch, const Options& options, const GradientTask& task, const RowResults& results,
                        Queue queue) override;

 private:
  std::unique_ptr<Backend> inner_;
};

}  // namespace tpce::gpu
