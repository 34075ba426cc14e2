// A backend that counts what is asked of allocate().
#pragma once

#include "tpce/backend.h"

namespace tpce::sim {

// Hands every call on to a backend on the host. Not safe for use by two threads at once; outlives its buffers.
class CountingBackend final : public Backend {
 public:
  explicit CountingBackend(Backend& inner) : inner_(inner) {}

  // The most bytes that were held at one time since start(), beyond those held then.
  void start() { most_ = held_before_ = held_; }
  std::int64_t most() const { return most_ - held_before_; }

  std::string_view name() const override { return inner_.name(); }
  Capabilities capabilities() const override { return inner_.capabilities(); }
  Buffer allocate(std::size_t bytes) const override;
  std::size_t workspace_bytes(const Batch& batch, const Options& options, std::int64_t rows) const override {
    return inner_.workspace_bytes(batch, options, rows);
  }
  void copy_in(void* to, const void* from, std::size_t bytes, Queue queue) override {
    inner_.copy_in(to, from, bytes, queue);
  }
  void copy_out(void* to, const void* from, std::size_t bytes, Queue queue) override {
    inner_.copy_out(to, from, bytes, queue);
  }
  void partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into, Queue queue) override {
    inner_.partials(batch, options, rows, into, queue);
  }
  void merge(const Partials& into, const Partials& from, Queue queue) override { inner_.merge(into, from, queue); }
  void finalize(const Partials& partials, const Options& options, const RowResults& results, Queue queue) override {
    inner_.finalize(partials, options, results, queue);
  }
  void reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue queue) override {
    inner_.reduce(results, first_row, sum, queue);
  }
  void gradient(const Batch& batch, const Options& options, const GradientTask& task, Queue queue) override {
    inner_.gradient(batch, options, task, queue);
  }
  void forward_backward(const Batch& batch, const Options& options, const GradientTask& task, const RowResults& results,
                        Queue queue) override {
    inner_.forward_backward(batch, options, task, results, queue);
  }

 private:
  struct Header;

  Backend& inner_;
  mutable std::int64_t held_ = 0;
  mutable std::int64_t most_ = 0;
  std::int64_t held_before_ = 0;
};

}  // namespace tpce::sim
