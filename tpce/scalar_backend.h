// The scalar backend: the canonical algorithm in its plainest form, one row and one shard at a time. Every fast backend
// is compared with it bit for bit. To write a backend, copy this pair of files and replace one function after another.
#pragma once

#include "tpce/backend.h"

namespace tpce {

class ScalarBackend final : public Backend {
 public:
  std::string_view name() const override { return "scalar"; }
  Capabilities capabilities() const override;
  Buffer allocate(std::size_t bytes) const override;
  void partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into, Queue queue) override;
  void merge(const Partials& into, const Partials& from, Queue queue) override;
  void finalize(const Partials& partials, const Options& options, const RowResults& results, Queue queue) override;
  void reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue queue) override;
  void gradient(const Batch& batch, const Options& options, const GradientTask& task, Queue queue) override;
};

}  // namespace tpce
