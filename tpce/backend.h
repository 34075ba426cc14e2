// Backend: makes partials from logits, merges and finalizes them, and makes gradients. Nothing outside a backend
// touches a logit or a partial's memory. scalar_backend.h is the plainest one, and the one to copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "tpce/batch.h"
#include "tpce/options.h"
#include "tpce/row_finalize.h"

namespace tpce {

struct Capabilities {
  DeviceType device = DeviceType::kCpu;    // where logits, partials and results live
  std::span<const DType> logits_dtypes;    // what partials() and gradient() read
  std::span<const DType> gradient_dtypes;  // what gradient() writes
};

// Memory of a backend's place, released with it.
using Buffer = std::unique_ptr<void, void (*)(void*)>;

// Rows [first, first + count) of a batch.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Partials of `rows` rows as planes, one array a field of RowPartial: what a collective sends. An option that adds to
// what a shard knows of a row adds a plane here.
struct Partials {
  std::int64_t rows = 0;
  std::int64_t* d0 = nullptr;
  std::int64_t* d1 = nullptr;
  std::int64_t* d2 = nullptr;
  float* max_logit = nullptr;
  float* target_logit = nullptr;
  std::uint32_t* flags = nullptr;

  // Bytes of one row over all planes: 36 with default options.
  static std::size_t bytes_per_row(const Options& options);

  // Lays the planes into memory of rows * bytes_per_row(options) bytes, aligned to 8.
  static Partials in(void* memory, std::int64_t rows, const Options& options);

  TPCE_HOST_DEVICE RowPartial load(std::int64_t i) const {
    return {max_logit[i], target_logit[i], Digits{d0[i], d1[i], d2[i]}, flags[i]};
  }
  TPCE_HOST_DEVICE void store(std::int64_t i, const RowPartial& partial) const {
    d0[i] = partial.digits.d0;
    d1[i] = partial.digits.d1;
    d2[i] = partial.digits.d2;
    max_logit[i] = partial.max_logit;
    target_logit[i] = partial.target_logit;
    flags[i] = partial.flags;
  }
};

// Where finalize() writes, one element a row. saved and nll are always given; the others may be null.
struct RowResults {
  std::int64_t rows = 0;
  SavedRow* saved = nullptr;
  float* nll = nullptr;
  float* lse = nullptr;
  double* nll_fp64 = nullptr;
  double* lse_fp64 = nullptr;

  // Rounds the row once to fp32. Host memory only.
  void store(std::int64_t i, const FinalRow& row) const;
};

// What reduce() gathers over the rows of a batch, in any order and grouping.
struct LossSum {
  static constexpr std::int64_t kNoRow = std::numeric_limits<std::int64_t>::max();

  BinnedSum nll;                // of the fp32 row losses
  std::int64_t valid_rows = 0;  // not ignored
  // The first row of each kind that may be an error, or kNoRow.
  std::int64_t first_not_finite = kNoRow;
  std::int64_t first_target_missing = kNoRow;
  std::int64_t first_target_twice = kNoRow;
};

// Adds the sum of other rows, whose first one is row first_row of the rows of `into`.
void merge(LossSum& into, const LossSum& from, std::int64_t first_row);

// Gradient of the whole result with respect to each row's loss: per_row[T], or one value for every row.
struct Upstream {
  double scalar = 1.0;
  const float* per_row = nullptr;

  double of_row(std::int64_t i) const { return per_row != nullptr ? static_cast<double>(per_row[i]) : scalar; }
};

// Everything gradient() needs beside the batch: saved[0] is that of row rows.first; upstream covers the batch.
struct GradientTask {
  RowRange rows;
  const SavedRow* saved = nullptr;
  Upstream upstream;
  // One matrix for each shard of the batch, [T, shard width]; empty where only the squares are wanted.
  std::span<const Matrix> gradients;
  // Adds the squares of the fp32 gradients, before they are rounded to the gradient's type; may be null.
  BinnedSum* squares = nullptr;
};

// Arguments are checked by the driver (cross_entropy.h), not here: shapes fit, labels are in range, places are right.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  virtual Capabilities capabilities() const = 0;

  // Memory at this backend's place, aligned to at least 64 bytes. Throws std::bad_alloc.
  virtual Buffer allocate(std::size_t bytes) const = 0;

  // Partials of the rows over all shards of the batch. Rows whose label is ignore_index are not read.
  virtual void partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into,
                        Queue queue) = 0;

  // Row by row: into = merge(into, from).
  virtual void merge(const Partials& into, const Partials& from, Queue queue) = 0;

  virtual void finalize(const Partials& partials, const Options& options, const RowResults& results, Queue queue) = 0;

  // Adds the rows to sum; first_row is the batch's index of the first of them.
  virtual void reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue queue) = 0;

  // Gradients of the logits. A gradient may be the logits themselves (same data, stride and type): each element is read
  // before it is written. Columns from batch.vocab on get +0.
  virtual void gradient(const Batch& batch, const Options& options, const GradientTask& task, Queue queue) = 0;

  // partials(), finalize() and gradient() of task.rows in one go, for a batch that holds every shard: the same bits,
  // with the logits read from memory once where the backend can. results are those of task.rows; task.saved is not
  // used.
  virtual void forward_backward(const Batch& batch, const Options& options, const GradientTask& task,
                                const RowResults& results, Queue queue);
};

}  // namespace tpce
