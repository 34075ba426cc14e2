#include "tpce/cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "tpce/checks.h"
#include "tpce/float_mode.h"
#include "tpce/host_labels.h"
#include "tpce/rank_checks.h"

namespace tpce {

namespace {

template <class T>
T* offset(T* array, std::int64_t first) {
  return array == nullptr ? nullptr : array + first;
}

// The forward pass of one chunk of rows, between the start of its collective and its results.
struct Chunk {
  RowRange rows;
  Partials partials;
  Communicator::Pending pending;
};

void check_upstream(const Upstream& upstream, const Options& options) {
  if (upstream.per_row != nullptr && options.reduction != Reduction::kNone) {
    throw std::invalid_argument("upstream: per_row is given with reduction " + std::string(name_of(options.reduction)) +
                                ", expected reduction none");
  }
}

// Of the row losses, from that of the reduced loss.
Upstream row_upstream(Upstream upstream, const Options& options, std::int64_t valid_rows) {
  if (options.reduction == Reduction::kMean) upstream.scalar /= static_cast<double>(valid_rows);
  return upstream;
}

RowResults chunk_results(const RowOutputs& rows, RowRange chunk, SavedRow* saved, float* chunk_nll) {
  const std::int64_t first = chunk.first;
  return {.rows = chunk.count,
          .saved = saved,
          .nll = rows.nll != nullptr ? rows.nll + first : chunk_nll,
          .lse = offset(rows.lse, first),
          .nll_fp64 = offset(rows.nll_fp64, first),
          .lse_fp64 = offset(rows.lse_fp64, first)};
}

std::int64_t rows_of_chunk(const Batch& batch, const Runtime& runtime) {
  return std::clamp<std::int64_t>(batch.rows(), 1, std::max<std::int64_t>(runtime.rows_per_chunk, 1));
}

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + Queue::kAlignment - 1) / Queue::kAlignment * Queue::kAlignment;
}

// Bytes of the parts that a call takes for chunks of so many rows.
struct PartSizes {
  std::size_t partials;  // of one chunk
  std::size_t nll;
  std::size_t saved;

  PartSizes(std::int64_t chunk_rows, const Options& options)
      // Planes start with 8-byte elements, so rounding up the rows keeps the second chunk's aligned.
      : partials((static_cast<std::size_t>(chunk_rows) * Partials::bytes_per_row(options) + 63) / 64 * 64),
        nll(static_cast<std::size_t>(chunk_rows) * sizeof(float)),
        saved(static_cast<std::size_t>(chunk_rows) * sizeof(SavedRow)) {}

  std::size_t all() const {
    return rounded_up(2 * partials) + rounded_up(nll) + rounded_up(saved) + rounded_up(sizeof(LossSum)) +
           rounded_up(sizeof(BinnedSum));
  }
};

// What a call holds until it returns: parts of the queue's workspace where that is as large as asked for, else memory
// of its own.
class CallMemory {
 public:
  // rows: of what the backend is asked for at once.
  CallMemory(const Batch& batch, const Options& options, const Runtime& runtime, std::int64_t rows)
      : backend_(runtime.backend),
        queue_(runtime.queue),
        is_given_(runtime.queue.workspace_bytes >= workspace_bytes(batch, options, runtime)) {
    check_workspace(queue_);
    const std::size_t bytes = backend_.workspace_bytes(batch, options, rows);
    if (queue_.workspace_bytes >= bytes) return;
    queue_.workspace = allocate(bytes);
    queue_.workspace_bytes = bytes;
  }

  void* take(std::size_t bytes) {
    if (!is_given_) return allocate(bytes);
    void* first = queue_.workspace;
    queue_.workspace = static_cast<std::byte*>(first) + rounded_up(bytes);
    queue_.workspace_bytes -= rounded_up(bytes);
    return first;
  }
  // With what is left, once all is taken: what the backend asks for at the least.
  Queue queue() const { return queue_; }

 private:
  void* allocate(std::size_t bytes) {
    allocated_.push_back(backend_.allocate(bytes));
    return allocated_.back().get();
  }

  Backend& backend_;
  Queue queue_;
  bool is_given_;
  std::vector<Buffer> allocated_;
};

// One value at the backend's place.
template <class T>
class Placed {
 public:
  Placed(Backend& backend, CallMemory& memory) : backend_(backend), there_(static_cast<T*>(memory.take(sizeof(T)))) {
    const T initial{};
    backend_.copy_in(there_, &initial, sizeof(T), memory.queue());
  }

  T& there() { return *there_; }
  T wait_for(Queue queue) {
    T value;
    backend_.copy_out(&value, there_, sizeof(T), queue);
    return value;
  }

 private:
  Backend& backend_;
  T* there_;
};

std::int64_t count_valid_rows(const Batch& batch, const Options& options, const Runtime& runtime) {
  const HostLabels labels(batch.labels, runtime.backend, runtime.queue);
  std::int64_t valid = 0;
  for (std::int64_t i = 0; i < labels.size(); ++i) valid += labels[i] != options.ignore_index ? 1 : 0;
  return valid;
}

// An error of this rank must end the others too, which wait for it in a collective.
template <class Body>
auto abort_on_error(Communicator& communicator, Body&& body) {
  try {
    return body();
  } catch (const CollectiveError&) {
    throw;
  } catch (const std::exception& error) {
    communicator.abort(error.what());
    throw;
  }
}

}  // namespace

std::size_t workspace_bytes(const Batch& batch, const Options& options, const Runtime& runtime) {
  return PartSizes(rows_of_chunk(batch, runtime), options).all() +
         runtime.backend.workspace_bytes(batch, options, batch.rows());
}

Saved::Saved(const Batch& batch, const Options& options, Buffer rows)
    : plan_(batch.plan),
      shards_(batch.shards.begin(), batch.shards.end()),
      labels_(batch.labels),
      vocab_(batch.vocab),
      options_(options),
      rows_(std::move(rows)) {}

Forward cross_entropy_forward(const Batch& batch, const Options& options, const RowOutputs& rows,
                              const Runtime& runtime) {
  Backend& backend = runtime.backend;
  Communicator& communicator = runtime.communicator;
  const DefaultFloatMode mode;
  return abort_on_error(communicator, [&] {
    check_ranks(batch, options, runtime);
    const std::int64_t chunk_rows = rows_of_chunk(batch, runtime);
    const PartSizes sizes(chunk_rows, options);
    CallMemory memory(batch, options, runtime, chunk_rows);
    auto* const partials = static_cast<std::byte*>(memory.take(2 * sizes.partials));
    auto* const chunk_nll = static_cast<float*>(memory.take(sizes.nll));
    Saved saved(batch, options, backend.allocate(static_cast<std::size_t>(batch.rows()) * sizeof(SavedRow)));
    Placed<LossSum> placed_sum(backend, memory);
    const Queue queue = memory.queue();

    const auto complete = [&](const Chunk& chunk) {
      communicator.finish(chunk.pending, queue);
      const RowResults results =
          chunk_results(rows, chunk.rows, static_cast<SavedRow*>(saved.rows_.get()) + chunk.rows.first, chunk_nll);
      backend.finalize(chunk.partials, options, results, queue);
      backend.reduce(results, chunk.rows.first, placed_sum.there(), queue);
    };

    // While one chunk's collective is in flight, the next chunk's partials are made.
    std::optional<Chunk> in_flight;
    for (std::int64_t first = 0, slot = 0; first < batch.rows(); first += chunk_rows, slot ^= 1) {
      const std::int64_t count = std::min(chunk_rows, batch.rows() - first);
      std::byte* const place = partials + static_cast<std::size_t>(slot) * sizes.partials;
      Chunk chunk{{first, count}, Partials::in(place, count, options), {}};
      backend.partials(batch, options, chunk.rows, chunk.partials, queue);
      chunk.pending = communicator.start_all_reduce(chunk.partials, backend, queue);
      if (in_flight) complete(*in_flight);
      in_flight = chunk;
    }
    if (in_flight) complete(*in_flight);

    const LossSum sum = placed_sum.wait_for(queue);
    communicator.confirm();
    check_rows(sum, batch, options, runtime);
    saved.valid_rows_ = sum.valid_rows;
    return Forward{reduced_loss(sum, batch.rows(), options), sum, std::move(saved)};
  });
}

Loss reduced_loss(const LossSum& sum, std::int64_t rows, const Options& options) {
  const DefaultFloatMode mode;
  Loss loss{.value_fp64 = 0.0, .value = 0.0f, .rows = rows, .valid_rows = sum.valid_rows};
  const double total = value_of(sum.nll);
  switch (options.reduction) {
    case Reduction::kNone:
      loss.value_fp64 = canonical_nan();
      break;
    case Reduction::kSum:
      loss.value_fp64 = total;
      break;
    case Reduction::kMean:
      if (sum.valid_rows > 0) {
        loss.value_fp64 = total / static_cast<double>(sum.valid_rows);
      } else {
        loss.value_fp64 = options.empty_mean == EmptyMean::kZero ? 0.0 : static_cast<double>(canonical_nan());
      }
      break;
  }
  loss.value = is_nan(loss.value_fp64) ? canonical_nan() : static_cast<float>(loss.value_fp64);
  return loss;
}

void cross_entropy_backward(Saved& saved, const Upstream& upstream, std::span<const Matrix> gradients,
                            const Runtime& runtime, BinnedSum* squares) {
  const DefaultFloatMode mode;
  abort_on_error(runtime.communicator, [&] {
    if (saved.logits_overwritten_) {
      throw std::invalid_argument(
          "saved: the logits were overwritten by the gradients of an earlier backward in place");
    }
    check_upstream(upstream, saved.options_);
    const Batch batch = saved.batch();
    const bool in_place = check_gradients(batch, gradients, runtime.backend).in_place;
    CallMemory memory(batch, saved.options_, runtime, batch.rows());
    std::optional<Placed<BinnedSum>> placed;
    if (squares != nullptr) placed.emplace(runtime.backend, memory);
    saved.logits_overwritten_ = in_place;
    runtime.backend.gradient(batch, saved.options_,
                             {.rows = {0, batch.rows()},
                              .saved = saved.rows(),
                              .upstream = row_upstream(upstream, saved.options_, saved.valid_rows_),
                              .gradients = gradients,
                              .squares = placed ? &placed->there() : nullptr},
                             memory.queue());
    if (placed) {
      BinnedSum local = placed->wait_for(memory.queue());
      runtime.communicator.all_reduce(local);
      merge(*squares, local);
    }
  });
}

Loss cross_entropy_forward_backward(const Batch& batch, const Options& options, const ForwardBackward& arguments,
                                    const Runtime& runtime) {
  if (runtime.communicator.size() > 1 || options.non_finite_row == NonFiniteRow::kError) {
    return abort_on_error(runtime.communicator, [&] {
      check_upstream(arguments.upstream, options);
      check_gradients(batch, arguments.gradients, runtime.backend);
      Forward forward = cross_entropy_forward(batch, options, arguments.rows, runtime);
      cross_entropy_backward(forward.saved, arguments.upstream, arguments.gradients, runtime, arguments.squares);
      return forward.loss;
    });
  }
  const DefaultFloatMode mode;
  check_ranks(batch, options, runtime);
  check_upstream(arguments.upstream, options);
  check_gradients(batch, arguments.gradients, runtime.backend);
  // Only a mean divides by them, and labels on a device take a wait to count.
  const std::int64_t valid_rows = options.reduction == Reduction::kMean ? count_valid_rows(batch, options, runtime) : 0;
  const std::int64_t chunk_rows = rows_of_chunk(batch, runtime);
  const PartSizes sizes(chunk_rows, options);
  CallMemory memory(batch, options, runtime, chunk_rows);
  auto* const saved = static_cast<SavedRow*>(memory.take(sizes.saved));
  auto* const chunk_nll = static_cast<float*>(memory.take(sizes.nll));
  Placed<LossSum> placed_sum(runtime.backend, memory);
  std::optional<Placed<BinnedSum>> placed_squares;
  if (arguments.squares != nullptr) placed_squares.emplace(runtime.backend, memory);
  const Queue queue = memory.queue();
  for (std::int64_t first = 0; first < batch.rows(); first += chunk_rows) {
    const RowRange chunk{first, std::min(chunk_rows, batch.rows() - first)};
    const RowResults results = chunk_results(arguments.rows, chunk, saved, chunk_nll);
    runtime.backend.forward_backward(batch, options,
                                     {.rows = chunk,
                                      .saved = nullptr,
                                      .upstream = row_upstream(arguments.upstream, options, valid_rows),
                                      .gradients = arguments.gradients,
                                      .squares = placed_squares ? &placed_squares->there() : nullptr},
                                     results, queue);
    runtime.backend.reduce(results, first, placed_sum.there(), queue);
  }
  const LossSum sum = placed_sum.wait_for(queue);
  check_rows(sum, batch, options, runtime);
  if (placed_squares) merge(*arguments.squares, placed_squares->wait_for(queue));
  return reduced_loss(sum, batch.rows(), options);
}

float gradient_norm(const BinnedSum& squares) {
  const DefaultFloatMode mode;
  const double sum = value_of(squares);
  return is_nan(sum) ? canonical_nan() : static_cast<float>(std::sqrt(sum));
}

}  // namespace tpce
