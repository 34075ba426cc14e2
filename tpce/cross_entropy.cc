#include "tpce/cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
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

// The caller's queue, with a workspace for this batch where its own is too small.
class WithWorkspace {
 public:
  WithWorkspace(const Batch& batch, const Options& options, const Runtime& runtime, std::int64_t rows)
      : queue_(runtime.queue) {
    const std::size_t bytes = runtime.backend.workspace_bytes(batch, options, rows);
    if (queue_.workspace_bytes >= bytes) return;
    memory_ = runtime.backend.allocate(bytes);
    queue_.workspace = memory_.get();
    queue_.workspace_bytes = bytes;
  }

  Queue queue() const { return queue_; }

 private:
  Buffer memory_{nullptr, [](void*) {}};
  Queue queue_;
};

// One value at the backend's place.
template <class T>
class Placed {
 public:
  Placed(Backend& backend, Queue queue) : backend_(backend), queue_(queue), memory_(backend.allocate(sizeof(T))) {
    const T initial{};
    backend_.copy_in(memory_.get(), &initial, sizeof(T), queue_);
  }

  T& there() { return *static_cast<T*>(memory_.get()); }
  T wait_for() {
    T value;
    backend_.copy_out(&value, memory_.get(), sizeof(T), queue_);
    return value;
  }

 private:
  Backend& backend_;
  Queue queue_;
  Buffer memory_;
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
    const auto chunk_size = static_cast<std::size_t>(chunk_rows);
    // Planes start with 8-byte elements, so rounding up the rows keeps the second chunk's aligned.
    const std::size_t partial_bytes = (chunk_size * Partials::bytes_per_row(options) + 63) / 64 * 64;
    const Buffer partials = backend.allocate(2 * partial_bytes);
    const Buffer chunk_nll = backend.allocate(chunk_size * sizeof(float));
    Saved saved(batch, options, backend.allocate(static_cast<std::size_t>(batch.rows()) * sizeof(SavedRow)));
    const WithWorkspace workspace(batch, options, runtime, chunk_rows);
    const Queue queue = workspace.queue();
    Placed<LossSum> placed_sum(backend, queue);

    const auto complete = [&](const Chunk& chunk) {
      communicator.finish(chunk.pending, queue);
      const RowResults results =
          chunk_results(rows, chunk.rows, static_cast<SavedRow*>(saved.rows_.get()) + chunk.rows.first,
                        static_cast<float*>(chunk_nll.get()));
      backend.finalize(chunk.partials, options, results, queue);
      backend.reduce(results, chunk.rows.first, placed_sum.there(), queue);
    };

    // While one chunk's collective is in flight, the next chunk's partials are made.
    std::optional<Chunk> in_flight;
    for (std::int64_t first = 0, slot = 0; first < batch.rows(); first += chunk_rows, slot ^= 1) {
      const std::int64_t count = std::min(chunk_rows, batch.rows() - first);
      auto* memory = static_cast<std::byte*>(partials.get()) + static_cast<std::size_t>(slot) * partial_bytes;
      Chunk chunk{{first, count}, Partials::in(memory, count, options), {}};
      backend.partials(batch, options, chunk.rows, chunk.partials, queue);
      chunk.pending = communicator.start_all_reduce(chunk.partials, backend, queue);
      if (in_flight) complete(*in_flight);
      in_flight = chunk;
    }
    if (in_flight) complete(*in_flight);

    const LossSum sum = placed_sum.wait_for();
    communicator.confirm();
    check_rows(sum, batch, options, backend, queue);
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
    const WithWorkspace workspace(batch, saved.options_, runtime, batch.rows());
    std::optional<Placed<BinnedSum>> placed;
    if (squares != nullptr) placed.emplace(runtime.backend, workspace.queue());
    saved.logits_overwritten_ = in_place;
    runtime.backend.gradient(batch, saved.options_,
                             {.rows = {0, batch.rows()},
                              .saved = saved.rows(),
                              .upstream = row_upstream(upstream, saved.options_, saved.valid_rows_),
                              .gradients = gradients,
                              .squares = placed ? &placed->there() : nullptr},
                             workspace.queue());
    if (placed) {
      BinnedSum local = placed->wait_for();
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
  const std::int64_t valid_rows = count_valid_rows(batch, options, runtime);
  const std::int64_t chunk_rows = rows_of_chunk(batch, runtime);
  const Buffer saved = runtime.backend.allocate(static_cast<std::size_t>(chunk_rows) * sizeof(SavedRow));
  const Buffer chunk_nll = runtime.backend.allocate(static_cast<std::size_t>(chunk_rows) * sizeof(float));
  const WithWorkspace workspace(batch, options, runtime, chunk_rows);
  Placed<LossSum> placed_sum(runtime.backend, workspace.queue());
  std::optional<Placed<BinnedSum>> placed_squares;
  if (arguments.squares != nullptr) placed_squares.emplace(runtime.backend, workspace.queue());
  for (std::int64_t first = 0; first < batch.rows(); first += chunk_rows) {
    const RowRange chunk{first, std::min(chunk_rows, batch.rows() - first)};
    const RowResults results =
        chunk_results(arguments.rows, chunk, static_cast<SavedRow*>(saved.get()), static_cast<float*>(chunk_nll.get()));
    runtime.backend.forward_backward(batch, options,
                                     {.rows = chunk,
                                      .saved = nullptr,
                                      .upstream = row_upstream(arguments.upstream, options, valid_rows),
                                      .gradients = arguments.gradients,
                                      .squares = placed_squares ? &placed_squares->there() : nullptr},
                                     results, workspace.queue());
    runtime.backend.reduce(results, first, placed_sum.there(), workspace.queue());
  }
  const LossSum sum = placed_sum.wait_for();
  check_rows(sum, batch, options, runtime.backend, workspace.queue());
  if (placed_squares) merge(*arguments.squares, placed_squares->wait_for());
  return reduced_loss(sum, batch.rows(), options);
}

float gradient_norm(const BinnedSum& squares) {
  const DefaultFloatMode mode;
  const double sum = value_of(squares);
  return is_nan(sum) ? canonical_nan() : static_cast<float>(std::sqrt(sum));
}

}  // namespace tpce
