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

  // Rounds the row once to fp32.
  TPCE_HOST_DEVICE void store(std::int64_t i, const FinalRow& row) const {
    const bool is_number = row.saved.status == RowStatus::kValid || row.saved.status == RowStatus::kIgnored;
    saved[i] = row.saved;
    nll[i] = is_number ? static_cast<float>(row.nll) : canonical_nan();
    if (lse != nullptr) lse[i] = is_number ? static_cast<float>(row.lse) : canonical_nan();
    if (nll_fp64 != nullptr) nll_fp64[i] = row.nll;
    if (lse_fp64 != nullptr) lse_fp64[i] = row.lse;
  }
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
  std::int64_t first_bad_label = kNoRow;
};

namespace loss_sum_detail {

TPCE_HOST_DEVICE inline void take_first(std::int64_t& first, std::int64_t row) {
  if (row < first) first = row;
}

}  // namespace loss_sum_detail

// Adds one row.
TPCE_HOST_DEVICE inline void add(LossSum& sum, RowStatus status, float nll, std::int64_t row) {
  using loss_sum_detail::take_first;
  if (status == RowStatus::kIgnored) return;
  if (status == RowStatus::kNotFinite) take_first(sum.first_not_finite, row);
  if (status == RowStatus::kTargetMissing) take_first(sum.first_target_missing, row);
  if (status == RowStatus::kTargetTwice) take_first(sum.first_target_twice, row);
  if (status == RowStatus::kBadLabel) take_first(sum.first_bad_label, row);
  sum.valid_rows += 1;
  add(sum.nll, nll);
}

// Adds the sum of other rows, whose first one is row first_row of the rows of `into`.
TPCE_HOST_DEVICE inline void merge(LossSum& into, const LossSum& from, std::int64_t first_row) {
  const auto take = [&](std::int64_t& first, std::int64_t row) {
    if (row != LossSum::kNoRow) loss_sum_detail::take_first(first, first_row + row);
  };
  merge(into.nll, from.nll);
  into.valid_rows += from.valid_rows;
  take(into.first_not_finite, from.first_not_finite);
  take(into.first_target_missing, from.first_target_missing);
  take(into.first_target_twice, from.first_target_twice);
  take(into.first_bad_label, from.first_bad_label);
}

// Gradient of the whole result with respect to each row's loss: per_row[T], at the backend's place, or one value for
// every row.
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
  // Adds the squares of the fp32 gradients, before they are rounded to the gradient's type; at the backend's place, may
  // be null.
  BinnedSum* squares = nullptr;
};

// Arguments are checked by the driver (cross_entropy.h), not here: shapes fit, labels in host memory are in range,
// places are right. A label at the backend's place that is out of range makes its row NaN, and shows in LossSum. Calls
// that take a queue may return before they are done, and none allocates. None waits for the queue but copy_in(),
// copy_out(), what allocate() and release do, and, where labels are in host memory that is not the backend's place, the
// calls that copy those: partials(), gradient() and forward_backward().
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  virtual Capabilities capabilities() const = 0;

  // Memory at this backend's place, aligned to at least 64 bytes, and as a queue's workspace where workspace_bytes()
  // asks for one. Throws std::bad_alloc.
  virtual Buffer allocate(std::size_t bytes) const = 0;

  // Bytes of the queue's workspace that the calls below want, for up to `rows` rows of the batch.
  virtual std::size_t workspace_bytes(const Batch& batch, const Options& options, std::int64_t rows) const;

  // From host memory to the backend's place, and back. copy_in() has read the memory when it returns, unless that is
  // page-locked: then the queue must be waited for before it changes. copy_out() returns once the bytes are there, and
  // with them all that was asked of the queue before: it throws what has failed since.
  virtual void copy_in(void* to, const void* from, std::size_t bytes, Queue queue);
  virtual void copy_out(void* to, const void* from, std::size_t bytes, Queue queue);

  // Partials of the rows over all shards of the batch. Rows whose label is ignore_index are not read.
  virtual void partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into,
                        Queue queue) = 0;

  // Row by row: into = merge(into, from).
  virtual void merge(const Partials& into, const Partials& from, Queue queue) = 0;

  virtual void finalize(const Partials& partials, const Options& options, const RowResults& results, Queue queue) = 0;

  // Adds the rows to sum, which lies at the backend's place; first_row is the batch's index of the first of them.
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
