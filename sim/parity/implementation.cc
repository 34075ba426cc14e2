#include "sim/parity/implementation.h"

#include <utility>

#include "reference/evaluate.h"
#include "tpce/cross_entropy.h"

namespace tpce::sim {
namespace {

// Losses of the file's rows add up to those of its parts; a row that has no loss is a value like any other.
Options options_of_part(const ParityRows& rows) {
  Options options = rows.options;
  options.reduction = Reduction::kSum;
  options.non_finite_row = NonFiniteRow::kNan;
  return options;
}

class CanonicalImplementation final : public Implementation {
 public:
  CanonicalImplementation(std::string name, std::unique_ptr<Backend> backend)
      : name_(std::move(name)), backend_(std::move(backend)) {}

  std::string name() const override { return name_; }
  bool is_canonical() const override { return true; }

  RowsResult evaluate(const ParityRows& rows) override {
    SelfCommunicator self;
    const Runtime runtime{.backend = *backend_, .communicator = self};
    RowsResult result = with_room(rows);
    result.lse.resize(result.loss.size());
    Forward forward = cross_entropy_forward(rows.batch, options_of_part(rows),
                                            {.nll = result.loss.data(), .lse = result.lse.data()}, runtime);
    result.sum = forward.sum;
    if (rows.gradient_dtype) {
      const std::vector<Matrix> parts = shards_of(result.gradient, rows.batch);
      cross_entropy_backward(forward.saved, upstream_of(rows), parts, runtime, &result.squares);
      result.fused = std::make_shared<const RowsResult>(by_one_call(rows, runtime));
    }
    return result;
  }

 private:
  static Upstream upstream_of(const ParityRows& rows) { return {.scalar = 1.0 / static_cast<double>(rows.divisor)}; }

  static RowsResult by_one_call(const ParityRows& rows, const Runtime& runtime) {
    RowsResult result = with_room(rows);
    const std::vector<Matrix> parts = shards_of(result.gradient, rows.batch);
    cross_entropy_forward_backward(
        rows.batch, options_of_part(rows),
        {.rows = {.nll = result.loss.data()}, .upstream = upstream_of(rows), .gradients = parts}, runtime);
    return result;
  }

  std::string name_;
  std::unique_ptr<Backend> backend_;
};

class SimulatedImplementation final : public Implementation {
 public:
  explicit SimulatedImplementation(const Method& method) : method_(method) {}

  std::string name() const override { return std::string(method_.name()); }
  bool is_softmax() const override { return method_.is_softmax(); }

  RowsResult evaluate(const ParityRows& rows) override {
    RowsResult result = with_room(rows);
    const std::vector<Matrix> parts = shards_of(result.gradient, rows.batch);
    // Divided in fp32, as run() does for a mean.
    const Upstream upstream{.scalar = static_cast<double>(1.0f / static_cast<float>(rows.divisor))};
    const MethodOutput output = run(
        method_,
        {.batch = rows.batch, .options = options_of_part(rows), .order = {}, .upstream = upstream, .gradients = parts});
    for (std::size_t i = 0; i < result.loss.size(); ++i) result.loss[i] = static_cast<float>(output.nll[i]);
    return result;
  }

 private:
  const Method& method_;
};

class ReferenceImplementation final : public Implementation {
 public:
  ReferenceImplementation(reference::Precision precision, int threads)
      : method_{.precision = precision, .threads = threads} {}

  std::string name() const override { return std::string(reference::name_of(method_.precision)); }
  bool knows_tp() const override { return false; }

  RowsResult evaluate(const ParityRows& rows) override {
    RowsResult result = with_room(rows);
    Options options = options_of_part(rows);
    options.reduction = Reduction::kNone;
    const reference::Inputs inputs{
        rows.batch, options, {.per_row = {}, .denominator = std::max<std::int64_t>(rows.divisor, 1)}};
    const reference::Evaluation truth = reference::evaluate(inputs, method_);
    result.lse.resize(result.loss.size());
    for (std::size_t i = 0; i < result.loss.size(); ++i) {
      result.loss[i] = truth.rows[i].loss.fp32;
      result.lse[i] = truth.rows[i].lse.fp32;
    }
    const bool proves = method_.precision == reference::Precision::kCertified;
    if (proves) result.undecided = static_cast<std::int64_t>(reference::undecided(truth, method_).size());
    if (rows.gradient_dtype) {
      const std::int64_t unproved = reference::gradient(inputs, method_, result.gradient);
      if (proves) result.undecided += unproved;
    }
    return result;
  }

 private:
  reference::Method method_;
};

}  // namespace

RowsResult with_room(const ParityRows& rows) {
  const std::int64_t count = rows.batch.rows(), columns = rows.batch.plan.columns();
  RowsResult result{.loss = std::vector<float>(static_cast<std::size_t>(count))};
  if (rows.gradient_dtype) {
    result.memory.resize(static_cast<std::size_t>(count * columns) * size_of(*rows.gradient_dtype));
    result.gradient = {result.memory.data(), *rows.gradient_dtype, count, columns, columns, {}};
  }
  return result;
}

std::vector<Matrix> shards_of(const Matrix& gradient, const Batch& batch) {
  std::vector<Matrix> parts;
  if (gradient.data == nullptr) return parts;
  for (const Shard& shard : batch.shards) {
    parts.push_back(gradient.column_range(batch.plan.first_class(shard.index), batch.plan.width(shard.index)));
  }
  return parts;
}

std::unique_ptr<Implementation> make_implementation(std::string name, std::unique_ptr<Backend> backend) {
  return std::make_unique<CanonicalImplementation>(std::move(name), std::move(backend));
}

std::unique_ptr<Implementation> make_implementation(const Method& method) {
  return std::make_unique<SimulatedImplementation>(method);
}

std::unique_ptr<Implementation> make_implementation(reference::Precision precision, int threads) {
  return std::make_unique<ReferenceImplementation>(precision, threads);
}

}  // namespace tpce::sim
