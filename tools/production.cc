#include "tools/production.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tpce/checks.h"
#include "tpce/scalar_backend.h"

namespace tpce::tools {

namespace {

class ProductionImplementation final : public sim::Implementation {
 public:
  ProductionImplementation(std::unique_ptr<gpu::Device> device, gpu::ProductionForm form)
      : device_(std::move(device)), form_(form) {}

  std::string name() const override { return name_of(device_->name(), form_); }
  sim::RowsResult evaluate(const sim::ParityRows& rows) override;

 private:
  // A copy of a matrix of the host, contiguous.
  Matrix copy(const ConstMatrix& from);
  void read(const Matrix& from, const Matrix& into) const;
  // Of the device, until evaluate() returns.
  void* take(std::size_t bytes) { return memory_.emplace_back(device_->allocate(bytes)).get(); }

  std::unique_ptr<gpu::Device> device_;
  gpu::ProductionForm form_;
  std::vector<Buffer> memory_;
};

std::size_t bytes_of(const ConstMatrix& matrix) {
  return static_cast<std::size_t>(matrix.rows * matrix.cols) * size_of(matrix.dtype);
}

Matrix ProductionImplementation::copy(const ConstMatrix& from) {
  const Matrix to{take(bytes_of(from)), from.dtype, from.rows, from.cols, from.cols, {device_->type(), 0}};
  for (std::int64_t i = 0; i < from.rows && from.cols > 0; ++i) {
    const ConstMatrix row = from.row_range(i, 1);
    device_->copy_to_device(to.row_range(i, 1).data, row.data, bytes_of(row), {});
  }
  return to;
}

// Rounded to the type of the rows that they are for.
void ProductionImplementation::read(const Matrix& from, const Matrix& into) const {
  std::vector<float> row(static_cast<std::size_t>(from.cols));
  visit_narrow_dtype(into.dtype, [&](auto element) {
    for (std::int64_t i = 0; i < from.rows && from.cols > 0; ++i) {
      device_->copy_to_host(row.data(), from.row<float>(i), row.size() * sizeof(float), {});
      for (std::size_t j = 0; j < row.size(); ++j) round_to(row[j], into.row<decltype(element)>(i) + j);
    }
  });
}

sim::RowsResult ProductionImplementation::evaluate(const sim::ParityRows& rows) {
  sim::check_logits_dtype(rows.batch, name());
  check_batch(rows.batch, rows.options, ScalarBackend(), SelfCommunicator());
  memory_.clear();
  const auto count = static_cast<std::size_t>(rows.batch.rows());
  const Place place{device_->type(), 0};
  std::vector<Shard> shards;
  for (const Shard& shard : rows.batch.shards) shards.push_back({copy(shard.logits), shard.index});
  const Labels& labels = rows.batch.labels;
  const std::size_t label_bytes = count * (labels.is_wide() ? sizeof(std::int64_t) : sizeof(std::int32_t));
  void* const on_device = take(label_bytes);
  device_->copy_to_device(on_device, labels.data(), label_bytes, {});
  const Batch batch{rows.batch.plan, shards,
                    labels.is_wide() ? Labels(static_cast<const std::int64_t*>(on_device), labels.size(), place)
                                     : Labels(static_cast<const std::int32_t*>(on_device), labels.size(), place),
                    rows.batch.vocab};

  gpu::ProductionMethod method(*device_, form_);
  const std::size_t workspace_bytes = method.workspace_bytes(batch);
  const gpu::ProductionRun run{batch,
                               rows.options.ignore_index,
                               take(method.saved_bytes(batch)),
                               {nullptr, take(workspace_bytes), workspace_bytes}};
  auto* const nll = static_cast<float*>(take(count * sizeof(float)));
  method.forward(run, nll);
  sim::RowsResult result = sim::with_room(rows);
  device_->copy_to_host(result.loss.data(), nll, count * sizeof(float), {});
  if (!rows.gradient_dtype) return result;

  std::vector<Matrix> gradients;
  for (const Shard& shard : shards) {
    Matrix gradient{nullptr, DType::kFloat32, shard.logits.rows, shard.logits.cols, shard.logits.cols, place};
    gradient.data = take(bytes_of(gradient));
    gradients.push_back(gradient);
  }
  // Divided in fp32, as trainers do.
  method.backward(run, {static_cast<double>(1.0f / static_cast<float>(rows.divisor))}, gradients);
  const std::vector<Matrix> parts = sim::shards_of(result.gradient, batch);
  for (std::size_t s = 0; s < parts.size(); ++s) read(gradients[s], parts[s]);
  memory_.clear();
  return result;
}

}  // namespace

std::string name_of(std::string_view backend, gpu::ProductionForm form) {
  return fmt::format("{}/{}", backend, gpu::name_of(form));
}

std::unique_ptr<sim::Implementation> make_production(std::unique_ptr<gpu::Device> device, gpu::ProductionForm form) {
  return std::make_unique<ProductionImplementation>(std::move(device), form);
}

}  // namespace tpce::tools
