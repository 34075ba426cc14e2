#include "gpu/production/production_method.h"

#include <stdexcept>
#include <string>
#include <type_traits>

namespace tpce::gpu {

namespace {

using Op = AllReduceArguments::Op;

std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Of one fp32 number a row.
std::size_t plane_bytes(const Batch& batch) { return static_cast<std::size_t>(batch.rows()) * sizeof(float); }

std::size_t log_probabilities_bytes(const Batch& batch, const Shard& shard) {
  return rounded(plane_bytes(batch) * static_cast<std::size_t>(shard.logits.cols));
}

LabelView labels_of(const ProductionRun& run) {
  const Labels& labels = run.batch.labels;
  return {labels.data(), labels.is_wide(), run.ignore_index, run.batch.vocab};
}

template <class T>
ProductionRows<T> rows_of(const ProductionRun& run, const Shard& shard) {
  return {.logits = shard.logits.row<T>(0),
          .row_stride = shard.logits.row_stride,
          .columns = shard.logits.cols,
          .classes = run.batch.classes_in(shard),
          .first_class = run.batch.plan.first_class(shard.index),
          .labels = labels_of(run)};
}

// Where the shard stands among those of the batch in the order of ranks.
std::int64_t rank_of(const Batch& batch, const Shard& shard) {
  std::int64_t rank = 0;
  for (const Shard& other : batch.shards) rank += other.index < shard.index ? 1 : 0;
  return rank;
}

std::int64_t blocks_of_rows(const Batch& batch) { return (batch.rows() + RowGrid::kThreads - 1) / RowGrid::kThreads; }

}  // namespace

std::string_view name_of(ProductionForm form) {
  return form == ProductionForm::kLogSoftmax ? "log_softmax" : "softplus_recompute";
}

// Numbers by row: those of each rank, [ranks][T], and those of all ranks, [T].
struct ProductionMethod::Planes {
  std::int64_t rows;
  float* of_ranks;
  float* of_ranks_too;  // a second number that the same kernel makes
  float* maximum;       // of softplus_recompute in the saved memory, as are the next three
  float* sum;           // without the target, of softplus_recompute
  float* sum_exp;
  float* target_exp;
  float* target;  // its log-probability, or its shifted logit

  float* of_rank(std::int64_t rank) const { return of_ranks + rank * rows; }
  float* of_rank_too(std::int64_t rank) const { return of_ranks_too + rank * rows; }
  SoftplusStatistics statistics() const { return {maximum, sum_exp, sum, target_exp}; }
};

std::size_t ProductionMethod::saved_bytes(const Batch& batch) const {
  if (form_ == ProductionForm::kSoftplusRecompute) return 4 * plane_bytes(batch);
  std::size_t bytes = 0;
  for (const Shard& shard : batch.shards) bytes += log_probabilities_bytes(batch, shard);
  return bytes;
}

// Two planes a rank, and three of all ranks.
std::size_t ProductionMethod::workspace_bytes(const Batch& batch) const {
  return (2 * batch.shards.size() + 3) * plane_bytes(batch);
}

ProductionMethod::Planes ProductionMethod::planes_of(const ProductionRun& run) const {
  const std::int64_t rows = run.batch.rows();
  const auto ranks = static_cast<std::int64_t>(run.batch.shards.size());
  auto* work = static_cast<float*>(run.queue.workspace);
  float* const of_all = work + 2 * ranks * rows;
  auto* saved = static_cast<float*>(run.saved);
  const bool saves = form_ == ProductionForm::kSoftplusRecompute;
  return {.rows = rows,
          .of_ranks = work,
          .of_ranks_too = work + ranks * rows,
          .maximum = saves ? saved : of_all,
          .sum = saves ? saved + rows : of_all + rows,
          .sum_exp = saves ? saved + 2 * rows : nullptr,
          .target_exp = saves ? saved + 3 * rows : nullptr,
          .target = of_all + 2 * rows};
}

Matrix ProductionMethod::log_probabilities(const ProductionRun& run, std::size_t shard) const {
  auto* data = static_cast<char*>(run.saved);
  for (std::size_t s = 0; s < shard; ++s) data += log_probabilities_bytes(run.batch, run.batch.shards[s]);
  const ConstMatrix& logits = run.batch.shards[shard].logits;
  return {data, DType::kFloat32, logits.rows, logits.cols, logits.cols, logits.place};
}

void ProductionMethod::check(const ProductionRun& run) const {
  const auto fail = [](const std::string& message) { throw std::invalid_argument(message); };
  if (run.batch.shards.empty()) fail("shards: got none, expected at least one");
  for (const Shard& shard : run.batch.shards) {
    const std::string logits = "logits of shard " + std::to_string(shard.index);
    if (shard.logits.dtype == DType::kFloat64) fail(logits + ": got fp64, expected fp32, bf16 or fp16");
    if (shard.logits.place.type != device_.type()) fail(logits + ": expected in the memory of the device");
  }
  if (run.saved == nullptr && run.batch.rows() > 0) fail("saved: got null, expected memory of saved_bytes()");
  if (run.batch.labels.place().type != device_.type()) fail("labels: expected in the memory of the device");
  const std::size_t wanted = workspace_bytes(run.batch);
  if (run.queue.workspace_bytes < wanted) {
    fail("queue: its workspace has " + std::to_string(run.queue.workspace_bytes) + " bytes, expected at least " +
         std::to_string(wanted) + ", see workspace_bytes()");
  }
}

void ProductionMethod::all_reduce(const ProductionRun& run, const float* of_rank, float* into, Op op) {
  const auto ranks = static_cast<std::int64_t>(run.batch.shards.size());
  launch(AllReduceArguments{{}, of_rank, ranks, run.batch.rows(), into, op}, blocks_of_rows(run.batch), run.queue);
}

void ProductionMethod::forward(const ProductionRun& run, float* nll) {
  check(run);
  const Planes planes = planes_of(run);
  const std::int64_t rows = planes.rows;
  const auto each_shard = [&](auto&& body) {
    for (std::size_t s = 0; s < run.batch.shards.size(); ++s) {
      const Shard& shard = run.batch.shards[s];
      visit_narrow_dtype(shard.logits.dtype, [&](auto element) {
        body(rows_of<decltype(element)>(run, shard), rank_of(run.batch, shard), s);
      });
    }
  };

  each_shard([&](const auto& shard, std::int64_t rank, std::size_t) {
    using T = typename std::remove_cvref_t<decltype(shard)>::Logit;
    launch(RowMaximumArguments<T>{{}, shard, planes.of_rank(rank)}, rows, run.queue);
  });
  all_reduce(run, planes.of_ranks, planes.maximum, Op::kMax);

  if (form_ == ProductionForm::kSoftplusRecompute) {
    each_shard([&](const auto& shard, std::int64_t rank, std::size_t) {
      using T = typename std::remove_cvref_t<decltype(shard)>::Logit;
      launch(SoftplusSumsArguments<T>{{}, shard, planes.maximum, planes.of_rank(rank), planes.of_rank_too(rank)}, rows,
             run.queue);
    });
    all_reduce(run, planes.of_ranks, planes.sum, Op::kSum);
    all_reduce(run, planes.of_ranks_too, planes.target, Op::kSum);
    launch(SoftplusLossArguments{{}, planes.statistics(), planes.target, labels_of(run), rows, nll},
           blocks_of_rows(run.batch), run.queue);
    return;
  }

  each_shard([&](const auto& shard, std::int64_t rank, std::size_t) {
    using T = typename std::remove_cvref_t<decltype(shard)>::Logit;
    launch(LogSoftmaxSumArguments<T>{{}, shard, planes.maximum, planes.of_rank(rank)}, rows, run.queue);
  });
  all_reduce(run, planes.of_ranks, planes.sum, Op::kSum);
  each_shard([&](const auto& shard, std::int64_t rank, std::size_t s) {
    using T = typename std::remove_cvref_t<decltype(shard)>::Logit;
    const Matrix into = log_probabilities(run, s);
    launch(
        LogProbabilitiesArguments<T>{
            {}, shard, planes.maximum, planes.sum, into.row<float>(0), into.row_stride, planes.of_rank(rank)},
        rows, run.queue);
  });
  all_reduce(run, planes.of_ranks, planes.target, Op::kSum);
  launch(LogSoftmaxLossArguments{{}, planes.target, labels_of(run), rows, nll}, blocks_of_rows(run.batch), run.queue);
}

void ProductionMethod::backward(const ProductionRun& run, const Upstream& upstream, std::span<const Matrix> gradients) {
  check(run);
  if (gradients.size() != run.batch.shards.size()) {
    throw std::invalid_argument("gradients: got " + std::to_string(gradients.size()) +
                                " of them, expected one a shard, " + std::to_string(run.batch.shards.size()));
  }
  for (std::size_t s = 0; s < gradients.size(); ++s) {
    const Shard& shard = run.batch.shards[s];
    const DType found = gradients[s].dtype;
    const std::string gradient = "gradient of shard " + std::to_string(shard.index);
    if (found != DType::kFloat32 && found != shard.logits.dtype) {
      throw std::invalid_argument(gradient + ": got " + std::string(name_of(found)) +
                                  ", expected fp32 or the logits' type, " + std::string(name_of(shard.logits.dtype)));
    }
    if (gradients[s].place.type != device_.type()) {
      throw std::invalid_argument(gradient + ": expected in the memory of the device");
    }
  }
  const Planes planes = planes_of(run);
  const UpstreamView scale{static_cast<float>(upstream.scalar), upstream.per_row};
  for (std::size_t s = 0; s < run.batch.shards.size(); ++s) {
    const Shard& shard = run.batch.shards[s];
    const Matrix& into = gradients[s];
    visit_narrow_dtype(shard.logits.dtype, [&](auto logit) {
      using T = decltype(logit);
      const auto write = [&](auto out) {
        using Out = decltype(out);
        if (form_ == ProductionForm::kSoftplusRecompute) {
          launch(
              SoftplusGradientArguments<T, Out>{
                  {}, rows_of<T>(run, shard), planes.statistics(), scale, into.row<Out>(0), into.row_stride},
              planes.rows, run.queue);
          return;
        }
        Shard kept = shard;
        kept.logits = log_probabilities(run, s);
        launch(
            LogSoftmaxGradientArguments<Out>{{}, rows_of<float>(run, kept), scale, into.row<Out>(0), into.row_stride},
            planes.rows, run.queue);
      };
      into.dtype == DType::kFloat32 ? write(float{}) : write(logit);
    });
  }
}

}  // namespace tpce::gpu
