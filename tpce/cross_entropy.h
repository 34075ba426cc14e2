// The driver: loss and gradient of tensor-parallel cross entropy, over chunks of rows. It never asks which backend,
// communicator or tp it has.
//
//   ScalarBackend backend;
//   SelfCommunicator self;
//   ShardPlan plan = ShardPlan::even(V, 2);
//   Shard shards[] = {{matrix_of(z0, T, plan.width(0)), 0}, {matrix_of(z1, T, plan.width(1)), 1}};
//   Batch batch{plan, shards, Labels(labels, T), V};
//   Forward forward = cross_entropy_forward(batch, {}, {}, {backend, self});
//   Matrix gradients[] = {matrix_of(dz0, T, plan.width(0)), matrix_of(dz1, T, plan.width(1))};
//   cross_entropy_backward(forward.saved, {}, gradients, {backend, self});
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tpce/backend.h"
#include "tpce/communicator.h"

namespace tpce {

// Who computes and who talks. The partials of two chunks are alive at once, whatever T is. With a workspace of the
// queue of workspace_bytes(), calls allocate nothing but the 24 bytes a row that Saved keeps; with a smaller one, or
// none, what they want is allocated in each call, and released, which on a device waits for the queue.
struct Runtime {
  Backend& backend;
  Communicator& communicator;
  std::int64_t rows_per_chunk = 1024;
  Queue queue = {};
};

// Bytes that the calls below take of the queue's workspace, at the backend's place, for this batch or one of fewer
// rows.
std::size_t workspace_bytes(const Batch& batch, const Options& options, const Runtime& runtime);

// Results by row, each [T] or null. fp32 values are the fp64 ones rounded once. An ignored row has nll 0 and lse 0.
struct RowOutputs {
  float* nll = nullptr;
  float* lse = nullptr;
  double* nll_fp64 = nullptr;
  double* lse_fp64 = nullptr;
};

struct Loss {
  // The reduced loss, and its fp32 rounding. NaN with Reduction::kNone, which reduces nothing.
  double value_fp64 = 0.0;
  float value = 0.0f;
  std::int64_t rows = 0;
  std::int64_t valid_rows = 0;  // not ignored: what a mean divides by
};

struct Forward;

// What backward needs: the logits by reference, and 24 bytes a row.
class Saved {
 public:
  Batch batch() const { return {plan_, shards_, labels_, vocab_}; }
  const Options& options() const { return options_; }
  const SavedRow* rows() const { return static_cast<const SavedRow*>(rows_.get()); }
  std::int64_t valid_rows() const { return valid_rows_; }

 private:
  friend Forward cross_entropy_forward(const Batch&, const Options&, const RowOutputs&, const Runtime&);
  friend void cross_entropy_backward(Saved&, const Upstream&, std::span<const Matrix>, const Runtime&, BinnedSum*);
  Saved(const Batch& batch, const Options& options, Buffer rows);

  ShardPlan plan_;
  std::vector<Shard> shards_;
  Labels labels_;
  std::int64_t vocab_;
  Options options_;
  Buffer rows_;
  std::int64_t valid_rows_ = 0;
  bool logits_overwritten_ = false;
};

struct Forward {
  Loss loss;
  LossSum sum;  // what loss was reduced from; sums of several batches merge, see reduced_loss()
  Saved saved;
};

// Loss of the batch. Every label is checked before anything is written.
// Throws std::invalid_argument, naming the argument, row and value: shapes that do not fit, shards that are not the
// plan's or not all here (one process) or twice here, fp64 logits, a label outside [0, vocab) that is not ignore_index,
// and, with NonFiniteRow::kError, a row that holds NaN or +inf. With several ranks (rank_checks.h) every rank throws
// the same CollectiveError; an error that strikes one rank later, such as std::bad_alloc, ends the run on all of them.
Forward cross_entropy_forward(const Batch& batch, const Options& options, const RowOutputs& rows,
                              const Runtime& runtime);

// The reduced loss of `rows` rows whose sum is given. Rows that do not fit in memory at once, or micro-batches, run as
// several batches with Reduction::kSum; their sums, merged, give here the bits that one batch gives, and backward with
// upstream.scalar 1 / valid_rows gives the gradients of its mean.
Loss reduced_loss(const LossSum& sum, std::int64_t rows, const Options& options);

// Gradient of the reduced loss times upstream.scalar, or, with Reduction::kNone, of the row losses times
// upstream.scalar or upstream.per_row[i].
//   gradients  one matrix for each shard of the batch, in its order, [T, shard width], of any type but the same place.
//              A matrix may be the shard's logits themselves (same data, stride and type), which then hold gradients
//              and can serve no second backward. Empty where only the squares are wanted.
//   squares    if not null, the sum of squares of the fp32 gradients is added, over all ranks; see gradient_norm().
// On a device it returns before the gradients are there, unless the squares are asked for, and labels in page-locked
// host memory must stay as they are until the queue was waited for. Throws std::invalid_argument: shapes that do not
// fit, any other overlap of memory, per_row with a reduction, or logits that an earlier call overwrote.
void cross_entropy_backward(Saved& saved, const Upstream& upstream, std::span<const Matrix> gradients,
                            const Runtime& runtime, BinnedSum* squares = nullptr);

// What the two calls take between them, for one call that does both.
struct ForwardBackward {
  RowOutputs rows = {};
  Upstream upstream = {};
  std::span<const Matrix> gradients = {};
  BinnedSum* squares = nullptr;
};

// cross_entropy_forward() and cross_entropy_backward() where the upstream gradient is known beforehand: the same bits
// and the same errors. Where this process holds every shard, each row's gradient follows its loss while its logits are
// still in the cache. With NonFiniteRow::kError nothing is fused, so that an error leaves the logits as they were.
Loss cross_entropy_forward_backward(const Batch& batch, const Options& options, const ForwardBackward& arguments,
                                    const Runtime& runtime);

// L2 norm of the gradients whose squares were summed, in fp32.
float gradient_norm(const BinnedSum& squares);

}  // namespace tpce
