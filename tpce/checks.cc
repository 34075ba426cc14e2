#include "tpce/checks.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tpce/host_labels.h"

namespace tpce {

namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

// For what every rank sees alike.
[[noreturn]] void fail_alike(const std::string& message) { throw CollectiveError(message); }

std::string text(std::int64_t value) { return std::to_string(value); }

template <class Void>
void check_matrix(const std::string& what, const BasicMatrix<Void>& matrix, std::int64_t rows, std::int64_t cols) {
  if (matrix.rows != rows || matrix.cols != cols) {
    fail(what + ": shape is [" + text(matrix.rows) + ", " + text(matrix.cols) + "], expected [" + text(rows) + ", " +
         text(cols) + "]");
  }
  if (matrix.row_stride < cols) {
    fail(what + ": row_stride is " + text(matrix.row_stride) + ", expected at least the width, " + text(cols));
  }
  // Offsets in bytes are int64.
  const auto size = static_cast<std::int64_t>(size_of(matrix.dtype));
  if (rows > 0 && matrix.row_stride > std::numeric_limits<std::int64_t>::max() / size / rows) {
    fail(what + ": row_stride is " + text(matrix.row_stride) + ", with which " + text(rows) +
         " rows exceed 2^63 - 1 bytes");
  }
  if (matrix.data == nullptr && rows > 0 && cols > 0) fail(what + ": data is null");
  const auto address = reinterpret_cast<std::uintptr_t>(matrix.data);
  if (address % size_of(matrix.dtype) != 0) {
    fail(what + ": data is not aligned to its elements of " + std::string(name_of(matrix.dtype)));
  }
}

// A strided block of bytes.
struct Block {
  std::uintptr_t begin;
  std::int64_t rows;
  std::int64_t width;
  std::int64_t stride;

  std::uintptr_t end() const { return begin + static_cast<std::uintptr_t>((rows - 1) * stride + width); }
};

template <class Void>
Block block_of(const BasicMatrix<Void>& matrix) {
  const auto size = static_cast<std::int64_t>(size_of(matrix.dtype));
  return {reinterpret_cast<std::uintptr_t>(matrix.data), matrix.rows, matrix.cols * size, matrix.row_stride * size};
}

// Exact for equal strides (column slices of one buffer interleave without sharing a byte); else whether the ranges from
// first to last byte meet.
bool overlap(const Block& a, const Block& b) {
  if (a.rows <= 0 || b.rows <= 0 || a.width <= 0 || b.width <= 0) return false;
  if (a.end() <= b.begin || b.end() <= a.begin) return false;
  if (a.stride != b.stride) return true;
  const Block& low = a.begin <= b.begin ? a : b;
  const Block& high = a.begin <= b.begin ? b : a;
  const auto offset = static_cast<std::int64_t>((high.begin - low.begin) % static_cast<std::uintptr_t>(a.stride));
  return offset < low.width || offset + high.width > a.stride;
}

// True only where no two overlap, as blocks of their own or column slices of buffers of their own; without comparing
// every pair.
bool plainly_apart(std::vector<Block> blocks) {
  std::erase_if(blocks, [](const Block& block) { return block.rows <= 0 || block.width <= 0; });
  std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.begin < b.begin; });
  for (std::size_t i = 0; i < blocks.size();) {
    const Block& first = blocks[i];
    const std::uintptr_t second_row = first.begin + static_cast<std::uintptr_t>(first.stride);
    std::uintptr_t end_in_row = first.begin;
    std::uintptr_t end = first.begin;
    for (; i < blocks.size() && blocks[i].stride == first.stride && blocks[i].begin < second_row; ++i) {
      if (blocks[i].begin < end_in_row) return false;
      end_in_row = blocks[i].begin + static_cast<std::uintptr_t>(blocks[i].width);
      end = std::max(end, blocks[i].end());
    }
    if (end_in_row > second_row || (i < blocks.size() && blocks[i].begin < end)) return false;
  }
  return true;
}

bool same_memory(const Matrix& gradient, const ConstMatrix& logits) {
  return gradient.data == logits.data && gradient.row_stride == logits.row_stride && gradient.dtype == logits.dtype;
}

std::string gradient_name(const Shard& shard) { return "gradient of shard " + text(shard.index); }

// Compares every pair, to name the first that overlaps; returns how many there are.
std::int64_t check_overlaps(const Batch& batch, std::span<const Matrix> gradients) {
  std::int64_t pairs = 0;
  for (std::size_t s = 0; s < gradients.size(); ++s) {
    const Block block = block_of(gradients[s]);
    for (std::size_t r = 0; r < s; ++r, ++pairs) {
      if (!overlap(block, block_of(gradients[r]))) continue;
      fail(gradient_name(batch.shards[s]) + ": its memory overlaps the " + gradient_name(batch.shards[r]));
    }
    for (std::size_t r = 0; r < gradients.size(); ++r, ++pairs) {
      const ConstMatrix& logits = batch.shards[r].logits;
      if ((r == s && same_memory(gradients[s], logits)) || !overlap(block, block_of(logits))) continue;
      fail(gradient_name(batch.shards[s]) + ": its memory overlaps the logits of shard " + text(batch.shards[r].index) +
           "; in place needs the same data, row_stride and dtype as the shard's own logits");
    }
  }
  return pairs;
}

bool is_bad(std::int64_t label, const Batch& batch, const Options& options) {
  return (label < 0 || label >= batch.vocab) && label != options.ignore_index;
}

std::string bad_label(std::int64_t row, std::int64_t label, const Batch& batch, const Options& options) {
  return "labels: row " + text(row) + " has label " + text(label) + ", expected 0.." + text(batch.vocab - 1) +
         " or ignore_index " + text(options.ignore_index);
}

// That of the first rank whose label is bad, and which rank that is, unless it is so on all of them.
[[noreturn]] void fail_for_bad_label(std::int64_t row, const Batch& batch, const Options& options,
                                     const Runtime& runtime) {
  const std::int64_t label = HostLabels(batch.labels.range(row, 1), runtime.backend, runtime.queue)[0];
  const std::vector<std::string> of_ranks =
      runtime.communicator.all_gather(is_bad(label, batch, options) ? bad_label(row, label, batch, options) : "");
  const auto bad =
      std::find_if(of_ranks.begin(), of_ranks.end(), [](const std::string& message) { return !message.empty(); });
  if (bad == of_ranks.end()) fail_alike("labels: row " + text(row) + " had a bad label, which was overwritten since");
  if (std::count(of_ranks.begin(), of_ranks.end(), *bad) == runtime.communicator.size()) fail_alike(*bad);
  fail_alike("rank " + text(bad - of_ranks.begin()) + " of " + text(runtime.communicator.size()) + ": " + *bad);
}

}  // namespace

void check_labels(const Batch& batch, const Options& options, const Backend& backend) {
  if (batch.rows() < 0) fail("labels: got " + text(batch.rows()) + " of them, expected at least 0");
  if (batch.rows() > 0 && batch.labels.is_null()) fail("labels: data is null");
  if (batch.labels.place().type != DeviceType::kCpu) {  // the backend reads them, and its sum tells of a bad one
    if (batch.labels.place().type == backend.capabilities().device) return;
    fail("labels: neither in host memory nor in that of backend '" + std::string(backend.name()) + "'");
  }
  for (std::int64_t i = 0; i < batch.rows(); ++i) {
    const std::int64_t label = batch.labels[i];
    if (is_bad(label, batch, options)) fail(bad_label(i, label, batch, options));
  }
}

void check_batch(const Batch& batch, const Options& options, const Backend& backend, const Communicator& communicator) {
  const ShardPlan& plan = batch.plan;
  const Capabilities capabilities = backend.capabilities();
  if (!communicator.accepts(capabilities.device)) {
    fail("communicator: '" + std::string(communicator.name()) + "' does not reach the memory of backend '" +
         std::string(backend.name()) + "'");
  }
  if (batch.vocab < 1 || batch.vocab > plan.columns()) {
    fail("vocab: got " + text(batch.vocab) + ", expected 1.." + text(plan.columns()) + ", the columns of the plan");
  }
  std::vector<bool> here(static_cast<std::size_t>(plan.tp()), false);
  for (const Shard& shard : batch.shards) {
    if (shard.index < 0 || shard.index >= plan.tp()) {
      fail("shards: got shard " + text(shard.index) + ", expected 0.." + text(plan.tp() - 1));
    }
    const std::string what = "logits of shard " + text(shard.index);
    if (here[static_cast<std::size_t>(shard.index)]) fail(what + ": given twice");
    here[static_cast<std::size_t>(shard.index)] = true;
    if (shard.logits.cols == plan.columns() && plan.width(shard.index) < plan.columns()) {
      fail(what + ": got the full logits, " + text(plan.columns()) + " columns, expected the " +
           text(plan.width(shard.index)) + " columns of the shard alone");
    }
    check_matrix(what, shard.logits, batch.rows(), plan.width(shard.index));
    if (shard.logits.place.type != capabilities.device) {
      fail(what + ": not in the memory of backend '" + std::string(backend.name()) + "'");
    }
    const auto& dtypes = capabilities.logits_dtypes;
    if (std::find(dtypes.begin(), dtypes.end(), shard.logits.dtype) == dtypes.end()) {
      fail(what + ": dtype is " + std::string(name_of(shard.logits.dtype)) +
           ", which the canonical algorithm does not take; either cast to fp32 (round to nearest; values beyond the "
           "largest fp32 become infinite), or use the fp64, multiprecision or certified reference");
    }
  }
  if (communicator.size() == 1) {
    const auto missing = std::find(here.begin(), here.end(), false);
    if (missing != here.end()) {
      fail("shards: shard " + text(missing - here.begin()) + " of " + text(plan.tp()) +
           " is missing, and no other rank holds it");
    }
  }
  check_labels(batch, options, backend);
}

void check_workspace(const Queue& queue) {
  const std::uintptr_t behind = reinterpret_cast<std::uintptr_t>(queue.workspace) % Queue::kAlignment;
  if (behind == 0) return;
  fail("queue: its workspace begins " + text(static_cast<std::int64_t>(behind)) + " bytes after a multiple of " +
       text(static_cast<std::int64_t>(Queue::kAlignment)) + ", expected at one");
}

void check_rows(const LossSum& sum, const Batch& batch, const Options& options, const Runtime& runtime) {
  if (sum.first_bad_label != LossSum::kNoRow) fail_for_bad_label(sum.first_bad_label, batch, options, runtime);
  if (sum.first_target_missing != LossSum::kNoRow) {
    fail_alike("shards: the target of row " + text(sum.first_target_missing) + " is held by no shard");
  }
  if (sum.first_target_twice != LossSum::kNoRow) {
    fail_alike("shards: the target of row " + text(sum.first_target_twice) + " is held by two shards");
  }
  if (options.non_finite_row == NonFiniteRow::kError && sum.first_not_finite != LossSum::kNoRow) {
    fail_alike("logits: row " + text(sum.first_not_finite) +
               " holds NaN or +inf, or nothing above -inf; its loss is NaN");
  }
}

GradientCheck check_gradients(const Batch& batch, std::span<const Matrix> gradients, const Backend& backend) {
  GradientCheck check;
  if (gradients.empty()) return check;
  if (gradients.size() != batch.shards.size()) {
    fail("gradients: got " + text(static_cast<std::int64_t>(gradients.size())) +
         " matrices, expected one for each of " + text(static_cast<std::int64_t>(batch.shards.size())) + " shards");
  }
  const Capabilities capabilities = backend.capabilities();
  std::vector<Block> blocks;
  for (std::size_t s = 0; s < gradients.size(); ++s) {
    const ConstMatrix& logits = batch.shards[s].logits;
    const std::string what = gradient_name(batch.shards[s]);
    check_matrix(what, gradients[s], logits.rows, logits.cols);
    if (gradients[s].place.type != capabilities.device) {
      fail(what + ": not in the memory of backend '" + std::string(backend.name()) + "'");
    }
    const auto& dtypes = capabilities.gradient_dtypes;
    if (std::find(dtypes.begin(), dtypes.end(), gradients[s].dtype) == dtypes.end()) {
      fail(what + ": backend '" + std::string(backend.name()) + "' does not write " +
           std::string(name_of(gradients[s].dtype)));
    }
    const bool itself = same_memory(gradients[s], logits);
    check.in_place = check.in_place || (itself && logits.rows > 0 && logits.cols > 0);
    blocks.push_back(block_of(gradients[s]));
    if (!itself) blocks.push_back(block_of(logits));
  }
  if (!plainly_apart(std::move(blocks))) check.pairs_compared = check_overlaps(batch, gradients);
  return check;
}

}  // namespace tpce
