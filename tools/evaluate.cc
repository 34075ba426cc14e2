#include "tools/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>

#include "io/error.h"
#include "reference/evaluate.h"
#include "sim/methods/method.h"
#include "tools/progress.h"
#include "tools/ranks.h"
#include "tpce/checks.h"
#include "tpce/rank_checks.h"

namespace tpce::tools {

namespace {

// Memory for one range of rows of the gradient, which is also what progress is shown by.
constexpr std::int64_t kRangeElements = std::int64_t{1} << 22;

// The file as the library sees it: shards that are column slices of any range of its rows, mapped as long as the range
// lives. Each rank of the communicator has neighbouring shards, as many as the others up to one; some have none.
class Problem {
 public:
  Problem(const io::LogitsFile& file, const Request& request, const Communicator& communicator)
      : file_(file),
        plan_(request.shards.empty() ? ShardPlan::even(columns(), request.tp)
                                     : ShardPlan::from_widths(columns(), request.shards)),
        vocab_(request.vocab.value_or(columns())),
        ranks_(communicator.size()),
        rank_(communicator.rank()),
        cast_(request.cast_to_fp32 && file.dtype() == DType::kFloat64) {}
  // Ranges point into the plan.
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  struct Range {
    io::LogitsFile::Rows logits;
    std::vector<Shard> shards;
    Labels labels;
    Batch batch;
    std::int64_t first;
  };

  // The returned object owns the shards that its batch views.
  std::unique_ptr<Range> range(std::int64_t first, std::int64_t count) const {
    return range_of(cast_ ? cast(first, count) : file_.logits(first, count), first);
  }
  std::unique_ptr<Range> whole() const { return range(0, rows()); }
  // Of the shape of the whole, for checks that read no logits: only those of the first row are there.
  std::unique_ptr<Range> shape() const {
    io::LogitsFile::Rows logits = cast_ ? cast(0, 1) : file_.logits(0, 1);
    logits.matrix.rows = rows();
    return range_of(std::move(logits), 0);
  }

  // Calls visit for ranges of rows that cover the file, in order.
  template <class Visit>
  void for_each_range(Visit&& visit) const {
    for (std::int64_t first = 0; first < rows(); first += range_rows()) {
      visit(*range(first, std::min(range_rows(), rows() - first)));
    }
  }

  std::int64_t rows() const { return file_.rows(); }
  std::int64_t columns() const { return file_.vocab(); }
  std::int64_t range_rows() const {
    return std::clamp<std::int64_t>(kRangeElements / columns(), 1, std::max<std::int64_t>(rows(), 1));
  }
  std::int64_t vocab() const { return vocab_; }
  DType dtype() const { return cast_ ? DType::kFloat32 : file_.dtype(); }
  Labels labels() const { return file_.labels(); }
  const ShardPlan& plan() const { return plan_; }

  // The columns of a rank's shards.
  struct Columns {
    std::int64_t first;
    std::int64_t count;
  };
  Columns columns_of(std::int64_t rank) const {
    const auto start = [&](std::int64_t shard) {
      return shard < plan_.tp() ? plan_.first_class(shard) : plan_.columns();
    };
    const std::int64_t first = start(first_shard(rank));
    return {first, start(first_shard(rank + 1)) - first};
  }

 private:
  std::int64_t first_shard(std::int64_t rank) const { return plan_.tp() * rank / ranks_; }

  std::unique_ptr<Range> range_of(io::LogitsFile::Rows logits, std::int64_t first) const {
    const std::int64_t first_column = cast_ ? columns_of(rank_).first : 0;
    std::vector<Shard> shards;
    for (std::int64_t s = first_shard(rank_); s < first_shard(rank_ + 1); ++s) {
      shards.push_back({logits.matrix.column_range(plan_.first_class(s) - first_column, plan_.width(s)), s});
    }
    const Labels labels = file_.labels().range(first, logits.matrix.rows);
    auto range = std::make_unique<Range>(
        Range{std::move(logits), std::move(shards), labels, {plan_, {}, labels, vocab_}, first});
    range->batch.shards = range->shards;
    return range;
  }

  // Rows in fp32: the columns of this rank alone.
  io::LogitsFile::Rows cast(std::int64_t first, std::int64_t count) const {
    const Columns own = columns_of(rank_);
    return round_to_fp32(file_.logits(first, count), own.first, own.count);
  }

  const io::LogitsFile& file_;
  ShardPlan plan_;
  std::int64_t vocab_;
  std::int64_t ranks_;
  std::int64_t rank_;
  bool cast_;
};

// Rows of the gradient, [rows, columns], and its shards as column slices.
class GradientRows {
 public:
  GradientRows(const ShardPlan& plan, DType dtype, std::int64_t rows)
      : plan_(plan), memory_(static_cast<std::size_t>(rows * plan.columns()) * size_of(dtype)) {
    matrix_ = {memory_.data(), dtype, rows, plan.columns(), plan.columns(), {}};
  }

  Matrix rows(std::int64_t count) const { return matrix_.row_range(0, count); }

  std::vector<Matrix> shards(const Batch& batch) const {
    std::vector<Matrix> slices;
    for (const Shard& shard : batch.shards) {
      slices.push_back(rows(batch.rows()).column_range(plan_.first_class(shard.index), plan_.width(shard.index)));
    }
    return slices;
  }

 private:
  const ShardPlan& plan_;
  std::vector<std::byte> memory_;
  Matrix matrix_;
};

// Brings the columns of every rank's shards to the first one.
void gather_columns(const Problem& problem, const Matrix& rows, Communicator& communicator) {
  if (communicator.size() == 1) return;
  const auto size = static_cast<std::int64_t>(size_of(rows.dtype));
  const auto place = [&](std::int64_t row, std::int64_t column) {
    return static_cast<char*>(rows.data) + (row * rows.row_stride + column) * size;
  };
  std::string mine;
  if (communicator.rank() != 0) {
    const Problem::Columns own = problem.columns_of(communicator.rank());
    for (std::int64_t i = 0; i < rows.rows; ++i) {
      mine.append(place(i, own.first), static_cast<std::size_t>(own.count * size));
    }
  }
  const std::vector<std::string> all = communicator.all_gather(mine);
  if (communicator.rank() != 0) return;
  for (std::int64_t r = 1; r < communicator.size(); ++r) {
    const Problem::Columns theirs = problem.columns_of(r);
    const auto bytes = static_cast<std::size_t>(theirs.count * size);
    for (std::int64_t i = 0; i < rows.rows && bytes > 0; ++i) {
      std::memcpy(place(i, theirs.first), all[static_cast<std::size_t>(r)].data() + static_cast<std::size_t>(i) * bytes,
                  bytes);
    }
  }
}

// Losses of the rows by the canonical method.
struct CanonicalForward {
  LossSum sum;
  std::vector<float> nll;
};

// Calls and_then(saved) behind the forward of each range of rows, while its logits are still mapped.
CanonicalForward canonical_forward(const Problem& problem, const Options& options, const Runtime& runtime,
                                   const std::function<void(Saved& saved)>& and_then) {
  check_ranks(problem.shape()->batch, options, runtime);
  // Sums of ranges merge to the bits of the whole; rows that are errors are named by their place in the whole.
  Options of_ranges = options;
  of_ranges.reduction = Reduction::kSum;
  of_ranges.non_finite_row = NonFiniteRow::kNan;
  CanonicalForward result;
  result.nll.resize(static_cast<std::size_t>(problem.rows()));
  problem.for_each_range([&](const Problem::Range& range) {
    Forward forward = cross_entropy_forward(range.batch, of_ranges, {.nll = result.nll.data() + range.first}, runtime);
    merge(result.sum, forward.sum, range.first);
    and_then(forward.saved);
  });
  check_rows(result.sum, problem.shape()->batch, options, runtime);
  return result;
}

Evaluation evaluate_canonical(const Problem& problem, const Request& request, const GradientSink* sink) {
  const Options& options = request.options;
  const std::unique_ptr<Backend> backend = make_backend(request.choice.backend, request.threads);
  const Runtime runtime{.backend = *backend, .communicator = ranks()};
  std::int64_t divisor = 1;
  if (options.reduction == Reduction::kMean) {
    divisor = 0;  // the valid rows
    for (std::int64_t i = 0; i < problem.rows(); ++i) divisor += problem.labels()[i] != options.ignore_index ? 1 : 0;
  }
  const Upstream upstream{.scalar = 1.0 / static_cast<double>(divisor)};
  const GradientRows gradient(problem.plan(), sink != nullptr ? sink->dtype : DType::kFloat32,
                              sink != nullptr ? problem.range_rows() : 0);
  BinnedSum squares;
  Progress progress("loss", problem.rows());
  CanonicalForward forward = canonical_forward(problem, options, runtime, [&](Saved& saved) {
    const std::int64_t count = saved.batch().rows();
    std::vector<Matrix> shards;
    if (sink != nullptr) shards = gradient.shards(saved.batch());
    cross_entropy_backward(saved, upstream, shards, runtime, &squares);
    if (sink != nullptr) {
      gather_columns(problem, gradient.rows(count), ranks());
      if (is_first_rank()) sink->rows(gradient.rows(count));
    }
    progress.advance(count);
  });
  return {.loss = reduced_loss(forward.sum, problem.rows(), options),
          .nll = std::move(forward.nll),
          .gradient_norm = gradient_norm(squares)};
}

// The fp32 losses that the canonical method gives the rows, where it takes the logits; else nothing.
std::vector<float> canonical_nll(const Problem& problem, const Request& request) {
  if (problem.dtype() == DType::kFloat64) return {};
  const std::string name = choose_method("canonical", std::nullopt).backend;
  const std::unique_ptr<Backend> backend = make_backend(name, request.threads);
  Options options = request.options;
  options.non_finite_row = NonFiniteRow::kNan;
  SelfCommunicator self;
  Progress progress("canonical loss", problem.rows());
  return canonical_forward(problem, options, {.backend = *backend, .communicator = self},
                           [&](Saved& saved) { progress.advance(saved.batch().rows()); })
      .nll;
}

Evaluation evaluate_simulated(const Problem& problem, const MethodInfo& method, const Options& options,
                              const GradientSink* sink) {
  const auto whole = problem.whole();
  const GradientRows gradient(problem.plan(), sink != nullptr ? sink->dtype : DType::kFloat32,
                              sink != nullptr ? problem.rows() : 0);
  std::vector<Matrix> shards;
  if (sink != nullptr) shards = gradient.shards(whole->batch);
  const sim::MethodInput input{.batch = whole->batch, .options = options, .gradients = shards};
  const sim::MethodOutput output = sim::run(sim::method_from_name(method.name), input);
  if (sink != nullptr) sink->rows(gradient.rows(problem.rows()));
  // Numbers of fp32, kept in fp64.
  const double loss = output.loss.value_or(static_cast<double>(canonical_nan()));
  Evaluation evaluation{.loss = {.value_fp64 = loss,
                                 .value = static_cast<float>(loss),
                                 .rows = problem.rows(),
                                 .valid_rows = output.valid_rows},
                        .gradient_norm = static_cast<float>(output.grad_norm)};
  for (const double nll : output.nll) evaluation.nll.push_back(static_cast<float>(nll));
  return evaluation;
}

Evaluation evaluate_reference(const Problem& problem, const Request& request, const GradientSink* sink) {
  const Options& options = request.options;
  const reference::Method precision{.precision = reference::precision_from_name(request.choice.method.name),
                                    .threads = request.threads};
  const auto whole = problem.whole();
  const reference::Upstream upstream = reference::upstream_of_reduction(whole->labels, options);
  const reference::Evaluation truth = [&] {
    Progress progress("loss", problem.rows());
    return reference::evaluate({whole->batch, options, upstream}, precision, [&] { progress.advance(1); });
  }();

  Evaluation evaluation{.loss = {.value_fp64 = static_cast<double>(canonical_nan()),
                                 .value = canonical_nan(),
                                 .rows = problem.rows(),
                                 .valid_rows = truth.valid_rows}};
  if (truth.reduced) {
    evaluation.loss.value_fp64 = truth.reduced->fp64;
    evaluation.loss.value = truth.reduced->fp32;
  }
  for (const reference::RowTruth& row : truth.rows) evaluation.nll.push_back(row.loss.fp32);
  if (precision.precision == reference::Precision::kCertified) {
    evaluation.warnings = reference::undecided(truth, precision);
  }

  // The norm is of the fp32 gradient, whatever type the sink takes.
  const GradientRows gradient(problem.plan(), DType::kFloat32, problem.range_rows());
  const GradientRows rounded(problem.plan(), sink != nullptr ? sink->dtype : DType::kFloat32,
                             sink != nullptr ? problem.range_rows() : 0);
  BinnedSum squares;
  std::int64_t uncertain = 0;
  Progress progress("gradient", problem.rows());
  problem.for_each_range([&](const Problem::Range& range) {
    const std::int64_t count = range.batch.rows();
    const Matrix rows = gradient.rows(count);
    uncertain += reference::gradient({range.batch, options, upstream}, precision, rows);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t j = 0; j < problem.columns(); ++j) add_square(squares, rows.row<float>(i)[j]);
    }
    if (sink != nullptr && sink->dtype == DType::kFloat32) sink->rows(rows);
    if (sink != nullptr && sink->dtype != DType::kFloat32) {
      visit_dtype(sink->dtype, [&](auto element) {
        for (std::int64_t i = 0; i < count; ++i) {
          auto* to = rounded.rows(count).row<decltype(element)>(i);
          for (std::int64_t j = 0; j < problem.columns(); ++j) round_to(rows.row<float>(i)[j], &to[j]);
        }
      });
      sink->rows(rounded.rows(count));
    }
    progress.advance(count);
  });
  if (precision.precision == reference::Precision::kCertified && uncertain > 0) {
    evaluation.warnings.push_back(fmt::format("{} gradients not decided with {} bits", uncertain, precision.max_bits));
  }
  evaluation.gradient_norm = gradient_norm(squares);
  return evaluation;
}

std::int64_t count_collapsed(const std::vector<float>& nll, const std::vector<float>& canonical) {
  std::int64_t collapsed = 0;
  for (std::size_t i = 0; i < canonical.size(); ++i) collapsed += nll[i] == 0.0f && canonical[i] != 0.0f;
  return collapsed;
}

// An evaluation by a method that knows no ranks but its own. The loss of the first rank goes to the others.
Evaluation evaluate_alone(const io::LogitsFile& file, const Request& request, const GradientSink* sink) {
  const SelfCommunicator self;
  const Problem problem(file, request, self);
  Evaluation evaluation = request.choice.backend == "simulator"
                              ? evaluate_simulated(problem, request.choice.method, request.options, sink)
                              : evaluate_reference(problem, request, sink);
  evaluation.collapsed_rows =
      request.choice.method.is_softmax ? count_collapsed(evaluation.nll, canonical_nll(problem, request)) : -1;
  evaluation.tp = problem.plan().tp();
  evaluation.vocab = problem.vocab();
  return evaluation;
}

// What body() returns on the first rank, on every rank, less the rows; where it throws, every rank does.
template <class Body>
Evaluation on_first_rank(Body&& body) {
  if (ranks().size() == 1) return body();
  struct Shared {
    Loss loss;
    float gradient_norm;
    std::int64_t collapsed_rows, tp, vocab;
  };
  Evaluation evaluation;
  Shared shared{};
  std::string error;
  if (is_first_rank()) {
    try {
      evaluation = body();
      shared = {evaluation.loss, evaluation.gradient_norm, evaluation.collapsed_rows, evaluation.tp, evaluation.vocab};
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
  }
  error = ranks().all_gather(error).front();
  if (!error.empty()) throw CollectiveError(error);
  std::string bytes(sizeof shared, '\0');
  std::memcpy(bytes.data(), &shared, sizeof shared);
  bytes = ranks().all_gather(bytes).front();
  std::memcpy(&shared, bytes.data(), sizeof shared);
  evaluation.loss = shared.loss;
  evaluation.gradient_norm = shared.gradient_norm;
  evaluation.collapsed_rows = shared.collapsed_rows;
  evaluation.tp = shared.tp;
  evaluation.vocab = shared.vocab;
  return evaluation;
}

Evaluation evaluate_over_ranks(const io::LogitsFile& file, const Request& request, const GradientSink* sink) {
  const Problem problem(file, request, ranks());
  Evaluation evaluation = evaluate_canonical(problem, request, sink);
  evaluation.tp = problem.plan().tp();
  evaluation.vocab = problem.vocab();
  return evaluation;
}

}  // namespace

io::LogitsFile::Rows round_to_fp32(const io::LogitsFile::Rows& wide, std::int64_t first, std::int64_t count) {
  const std::int64_t rows = wide.matrix.rows;
  const std::shared_ptr<float[]> narrow(new float[static_cast<std::size_t>(rows * count)]);
  for (std::int64_t i = 0; i < rows; ++i) {
    const double* from = wide.matrix.row<double>(i) + first;
    std::transform(from, from + count, narrow.get() + i * count, [](double x) { return static_cast<float>(x); });
  }
  return {matrix_of(static_cast<const float*>(narrow.get()), rows, count), narrow};
}

std::string explain(const std::exception& error, const std::string& file_name, const io::LogitsFile& file,
                    std::string_view fp64_hint) {
  // Messages of the libraries begin with the argument.
  const bool labels = std::string_view(error.what()).starts_with("labels: ");
  std::string message = io::printable(labels ? file.labels_path() : file_name) + ": " + error.what();
  if (!labels && file.dtype() == DType::kFloat64 && !fp64_hint.empty()) message += fmt::format(" ({})", fp64_hint);
  return message;
}

Evaluation evaluate(const std::string& file_name, const io::LogitsFile& file, const Request& request,
                    const GradientSink* sink) {
  const auto explained = [&](const std::exception& error) {
    constexpr std::string_view kHint = "--cast fp32, or --method certified, multiprecision or fp64";
    return explain(error, file_name, file, request.cast_to_fp32 ? std::string_view() : kHint);
  };
  try {
    if (request.choice.method.name == "canonical") return evaluate_over_ranks(file, request, sink);
    return on_first_rank([&] { return evaluate_alone(file, request, sink); });
  } catch (const CollectiveError& error) {
    throw CollectiveError(explained(error));
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(explained(error));
  }
}

}  // namespace tpce::tools
