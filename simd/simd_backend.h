// The simd backend: the canonical algorithm in vector registers and over threads, with the bits of ScalarBackend.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "simd/executor.h"
#include "simd/kernels.h"
#include "tpce/backend.h"
#include "tpce/scalar_backend.h"

namespace tpce::simd {

struct SimdOptions {
  std::string target;  // empty: the best one, or the environment variable TPCE_TARGET
  int threads = 0;     // 0: as many as the process may use
  BlockSkipping block_skipping = BlockSkipping::kOn;
};

// Columns [first, first + count) of one shard of a batch, by its position in the batch.
struct Piece {
  std::size_t shard;
  std::int64_t first;
  std::int64_t count;
};

class SimdBackend final : public Backend {
 public:
  // Throws std::invalid_argument for a target or a number of threads that cannot be.
  explicit SimdBackend(const SimdOptions& options = {});
  // The same on an executor of the caller's.
  SimdBackend(const SimdOptions& options, std::unique_ptr<Executor> executor);

  std::string_view name() const override { return "simd"; }
  std::string_view target() const { return kernels_.name; }
  int threads() const { return executor_->threads(); }

  Capabilities capabilities() const override;
  Buffer allocate(std::size_t bytes) const override { return scalar_.allocate(bytes); }
  void partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into, Queue queue) override;
  void merge(const Partials& into, const Partials& from, Queue queue) override;
  void finalize(const Partials& partials, const Options& options, const RowResults& results, Queue queue) override;
  void reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue queue) override;
  void gradient(const Batch& batch, const Options& options, const GradientTask& task, Queue queue) override;
  void forward_backward(const Batch& batch, const Options& options, const GradientTask& task, const RowResults& results,
                        Queue queue) override;

 private:
  using Pieces = std::vector<Piece>;

  // Calls body(rows, squares) for at most rows_per_task of `rows` rows at a time, on any thread, and adds the squares
  // of all to *squares where that is not null.
  using RowsBody = std::function<void(RowRange rows, BinnedSum& squares)>;
  void for_rows(std::int64_t rows, std::int64_t rows_per_task, BinnedSum* squares, const RowsBody& body) const;
  // No more than leave every thread busy to the end.
  std::int64_t rows_per_task(const Batch& batch, std::int64_t rows, std::int64_t wanted) const;

  // What one task does of one row: all of it, or, where there are too few rows to keep every thread busy, one piece.
  std::vector<Pieces> tasks_of_row(const Batch& batch, std::int64_t rows) const;

  // One task: pieces of one row; for a backward that follows at once, what its forward keeps for it, or null, and where
  // it will write, by shard.
  struct RowTask {
    std::int64_t row;
    const Pieces& pieces;
    ExpCache* cache = nullptr;
    std::span<const Matrix> gradients = {};
  };
  RowPartial partial_of(const Batch& batch, const Options& options, const RowTask& row) const;
  // Returns the squares, where the task asks for them.
  BinnedSum write_gradient(const Batch& batch, const GradientTask& task, const RowGradient& gradient,
                           const RowTask& row) const;

  Kernels kernels_;
  std::unique_ptr<Executor> executor_;
  BlockSkipping block_skipping_;
  ScalarBackend scalar_;  // what is done once a row stays scalar
};

}  // namespace tpce::simd
